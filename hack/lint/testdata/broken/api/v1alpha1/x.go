package v1alpha1

import (
	_ "k8s.io/api/apps/v1"
	_ "k8s.io/api/core/v1"
	_ "sigs.k8s.io/controller-runtime/pkg/scheme"
)
