# The trainer on a root of your own making, with nothing fetched while it is built; `offline` calls it.
ARG BASE
FROM ${BASE}
COPY site /opt/trainer
COPY gradient_trainer /opt/trainer/gradient_trainer
ENV PYTHONPATH=/opt/trainer PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 HOME=/tmp
WORKDIR /tmp
# Jobs run as their worker's user; this one is for running the image by hand.
USER 10001:10001
CMD ["python", "-m", "gradient_trainer"]
