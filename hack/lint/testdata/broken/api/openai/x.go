package openai

import (
	_ "k8s.io/client-go/rest"
	_ "metalfleet.dev/metalfleet/gateway"
)
