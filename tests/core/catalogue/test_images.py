"""Image references and their short names."""

import pytest

from core.catalogue.images import ImageCatalogue, is_reference, normalize_reference, with_digest
from core.catalogue.machine_types import Catalogue
from core.errors import SpecInvalid

IMAGES = ImageCatalogue.load()
MACHINES = Catalogue.load()
DIGEST = "sha256:" + "0a" * 32


def resolve(container, machine="CPU", images=IMAGES):
    return images.resolve(container, MACHINES.get(machine))


@pytest.fixture
def written(tmp_path):
    def write(text):
        file = tmp_path / "images.toml"
        file.write_text(text)
        return file

    return write


@pytest.mark.parametrize("short", list(IMAGES), ids=lambda short: short.name)
def test_every_shipped_name_stands_for_an_image_of_one_tag(short):
    for image in {short.image, short.gpu_image or short.image}:
        assert is_reference(image)
        assert normalize_reference(image) == image, "as engines list it, with a tag"
        assert not image.endswith(":latest")
    assert short.summary


@pytest.mark.parametrize(
    ("container", "machine", "image"),
    [
        ("trainer", "CPU", "gradient/trainer:0.1.0"),
        ("trainer", "V100", "gradient/trainer:0.1.0-gpu"),
        ("trainer", "TPU", "gradient/trainer:0.1.0"),
        ("gradient/trainer", "CPU", "gradient/trainer:0.1.0"),
        ("trainer-gpu", "CPU", "gradient/trainer:0.1.0-gpu"),
        ("paperspace/tensorflow-python", "CPU", "tensorflow/tensorflow:2.21.0"),
        ("tensorflow", "K80", "tensorflow/tensorflow:2.21.0-gpu"),
        ("tensorflow:1.13.1", "CPU", "tensorflow:1.13.1"),
        ("other", "CPU", "other:latest"),
        (None, "CPU", None),
    ],
)
def test_a_container_stands_for_an_image(container, machine, image):
    assert resolve(container, machine) == image


@pytest.mark.parametrize(
    ("reference", "listed"),
    [
        ("debian", "debian:latest"),
        ("debian:12", "debian:12"),
        ("docker.io/library/debian:12", "debian:12"),
        ("docker.io/org/image", "org/image:latest"),
        ("index.docker.io/org/image:1", "org/image:1"),
        ("localhost:5000/x", "localhost:5000/x:latest"),
        ("localhost:5000/x:1", "localhost:5000/x:1"),
        (f"localhost:5000/x:1@{DIGEST}", f"localhost:5000/x@{DIGEST}"),
        (f"debian@{DIGEST}", f"debian@{DIGEST}"),
        (DIGEST, DIGEST),
    ],
)
def test_a_reference_is_written_as_engines_list_it(reference, listed):
    assert is_reference(reference)
    assert normalize_reference(reference) == listed


@pytest.mark.parametrize("text", ["", "UPPER", "a b", "a:", ":a", "-x", "a@sha256:1", "a/" * 300 + "a", "a\n"])
def test_what_is_no_reference_is_none(text):
    assert not is_reference(text)


@pytest.mark.parametrize(
    ("image", "digest", "exact"),
    [
        ("debian:12", f"debian@{DIGEST}", f"debian@{DIGEST}"),
        ("made:here", DIGEST, DIGEST),
        (f"debian@{DIGEST}", None, f"debian@{DIGEST}"),
        ("debian:12", None, None),
    ],
)
def test_an_image_that_ran_can_be_named_exactly(image, digest, exact):
    assert with_digest(image, digest) == exact


def test_an_administrator_changes_and_adds_names(written):
    file = written('[tensorflow]\nimage = "mirror.example.com/tf:1"\n\n[ours]\nimage = "ours:3"\nsummary = "ours"\n')
    images = ImageCatalogue.load(override_path=file)
    assert resolve("tensorflow", images=images) == "mirror.example.com/tf:1"
    assert resolve("paperspace/tensorflow-python", images=images) == "mirror.example.com/tf:1", "what is not said stays"
    assert resolve("ours", images=images) == "ours:3"
    assert len(images) == len(IMAGES) + 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('[x]\nimage = "x:1"', "summary"),
        ('[x]\nimage = "Not An Image"\nsummary = "x"', "not an image reference"),
        ('[x]\nimage = "x:1"\nsummary = "x"\naliases = ["trainer"]', "'trainer' already means"),
        ('[x]\nimage = "x:1"\nsummary = "x"\nsize = 3', "size"),
        ("x = 1", "write each image name as"),
        ("[x", "not valid TOML"),
    ],
)
def test_a_file_that_will_not_do_is_explained(written, text, says):
    file = written(text)
    with pytest.raises(SpecInvalid, match=says) as refused:
        ImageCatalogue.load(override_path=file)
    assert str(file) in refused.value.message or refused.value.field == "images.file"
