package gateway

import (
	_ "k8s.io/client-go/kubernetes"
	_ "metalfleet.dev/metalfleet/cmd/agent"
	_ "metalfleet.dev/metalfleet/test/bench/report"
	_ "metalfleet.dev/metalfleet/test/testenv"
)
