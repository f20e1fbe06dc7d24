"""Contract test cases for people who add a network, a parameterization, a module or a data module.

Each is a plain class of test methods: derive from it in a test file, give the factory, and pytest collects the tests.
"""

from lightning_lift.testing.data import DataModuleContract
from lightning_lift.testing.module import ModuleContract
from lightning_lift.testing.network import NetworkContract
from lightning_lift.testing.parameterization import ParameterizationContract

__all__ = ["DataModuleContract", "ModuleContract", "NetworkContract", "ParameterizationContract"]
