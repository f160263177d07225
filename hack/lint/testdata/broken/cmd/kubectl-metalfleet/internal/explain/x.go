package explain

import (
	_ "k8s.io/apimachinery/pkg/api/meta"
	_ "metalfleet.dev/metalfleet/cmd/kubectl-metalfleet/internal/picture"
	_ "metalfleet.dev/metalfleet/controllers/placement/plan"
	_ "metalfleet.dev/metalfleet/docs"

	_ "metalfleet.dev/metalfleet/controllers/placement"
	_ "sigs.k8s.io/controller-runtime/pkg/client"
)
