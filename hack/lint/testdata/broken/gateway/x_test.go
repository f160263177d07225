package gateway

import (
	_ "k8s.io/client-go/kubernetes"
	_ "metalfleet.dev/metalfleet/cmd/agent"
	_ "metalfleet.dev/metalfleet/hack/bench/ready"
	_ "metalfleet.dev/metalfleet/hack/testenv"
)
