"""The models. Each file defines `build(image_shape, classes)`, which returns a Keras model.

The model takes float32 images in 0..255, shape (batch, *image_shape), and returns logits, shape
(batch, classes). Loss, optimizer and schedule belong to the training, not to the model.
"""
