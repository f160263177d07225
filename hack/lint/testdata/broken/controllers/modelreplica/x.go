package modelreplica

import (
	_ "metalfleet.dev/metalfleet/controllers/fleet"
	_ "metalfleet.dev/metalfleet/controllers/internal/status"
	_ "metalfleet.dev/metalfleet/controllers/placement"
	_ "metalfleet.dev/metalfleet/metal/footprint"
	_ "metalfleet.dev/metalfleet/metal/nn"
)
