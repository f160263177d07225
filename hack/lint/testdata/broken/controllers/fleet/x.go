package fleet

import (
	_ "metalfleet.dev/metalfleet/controllers/placement"
)
