package gateway

import (
	_ "metalfleet.dev/metalfleet/hack/testenv"
)
