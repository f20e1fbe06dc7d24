"""Commands of ``lightning-lift`` beside fit, validate, test and predict: one file each, with ``main(args)``."""

# By module name: a command is imported when it is called, so that fit does not wait for what only a report needs.
COMMANDS = {
    "rescale": "lightning_lift.commands.rescale",
    "compare": "lightning_lift.commands.compare",
    "escape": "lightning_lift.commands.escape",
    "landscape": "lightning_lift.commands.landscape",
}
