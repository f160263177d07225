package pick

import (
	_ "metalfleet.dev/metalfleet/agent/pool"
	_ "metalfleet.dev/metalfleet/gateway/route"
	_ "metalfleet.dev/metalfleet/metal/footprint"
)
