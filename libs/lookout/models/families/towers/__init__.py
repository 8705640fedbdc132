"""The vision towers of the families, each a subclass of `lookout.models.vision.base.BaseTower`."""
