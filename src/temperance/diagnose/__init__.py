"""Why a network's confidence is as it is: shifted data, classifier geometry, traces of fits, gradients of losses."""
