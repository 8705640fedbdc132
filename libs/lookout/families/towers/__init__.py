"""The vision towers of the families, each a subclass of `lookout.vision.base.BaseTower`."""
