package agent

import (
	_ "k8s.io/client-go/kubernetes"
	_ "k8s.io/client-go/rest"
)
