package plan

import (
	_ "k8s.io/apimachinery/pkg/api/resource"
	_ "metalfleet.dev/metalfleet/controllers/fleet"
	_ "metalfleet.dev/metalfleet/controllers/macnode"
	_ "sigs.k8s.io/controller-runtime/pkg/client"
)
