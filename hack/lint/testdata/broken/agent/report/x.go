package report

import (
	_ "k8s.io/client-go/kubernetes"
	_ "metalfleet.dev/metalfleet/gateway"
)
