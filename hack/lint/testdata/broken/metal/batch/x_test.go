package batch

import (
	_ "github.com/google/go-cmp/cmp"
	_ "k8s.io/client-go/rest"
	_ "metalfleet.dev/metalfleet/metal/tinymodel"
)
