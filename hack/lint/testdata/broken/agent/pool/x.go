package pool

import (
	_ "k8s.io/apimachinery/pkg/types"
	_ "k8s.io/client-go/kubernetes"
	_ "metalfleet.dev/metalfleet/controllers/fleet"
	_ "metalfleet.dev/metalfleet/metal/engine"
	_ "metalfleet.dev/metalfleet/metal/wire"
)
