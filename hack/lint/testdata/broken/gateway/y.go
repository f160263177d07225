package gateway

import (
	_ "metalfleet.dev/metalfleet/hack/release"
	_ "metalfleet.dev/metalfleet/test/testenv"
)
