"""Networks that classify images, by name."""

from temperance.training.networks import densenet, preresnet, resnet, small
from temperance.training.networks.base import NETWORKS, Architecture, Network, make_network

__all__ = ["NETWORKS", "Architecture", "Network", "densenet", "make_network", "preresnet", "resnet", "small"]
