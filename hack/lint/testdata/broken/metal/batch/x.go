package batch

import (
	_ "github.com/spf13/cobra"
	_ "golang.org/x/sync/errgroup"
	_ "k8s.io/apimachinery/pkg/types"
	_ "metalfleet.dev/metalfleet/api/model"
	_ "metalfleet.dev/metalfleet/api/v1alpha1"
	_ "metalfleet.dev/metalfleet/metal/tinymodel"
)
