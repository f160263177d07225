package main

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/controllers"
)

// mayUninstall fails while ModelDeployments exist: without an operator their engines would
// stay on the Macs. The chart runs it before a delete.
func mayUninstall(ctx context.Context, config *rest.Config, namespaces []string) error {
	c, err := client.New(config, client.Options{Scheme: controllers.Scheme()})
	if err != nil {
		return fmt.Errorf("client for %s: %w", config.Host, err)
	}
	if len(namespaces) == 0 {
		namespaces = []string{metav1.NamespaceAll}
	}
	var all v1alpha1.ModelDeploymentList
	for _, namespace := range namespaces {
		var list v1alpha1.ModelDeploymentList
		if err := c.List(ctx, &list, client.InNamespace(namespace)); meta.IsNoMatchError(err) {
			return nil // the CRDs are deleted, and so are their objects
		} else if err != nil {
			return fmt.Errorf("list ModelDeployments: %w", err)
		}
		all.Items = append(all.Items, list.Items...)
	}
	if len(all.Items) == 0 {
		return nil
	}
	const shown = 5
	var names []string
	for i := range all.Items[:min(shown, len(all.Items))] {
		names = append(names, all.Items[i].Namespace+"/"+all.Items[i].Name)
	}
	if more := len(all.Items) - shown; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Errorf("%d ModelDeployments still exist (%s), and their engines would stay on the Macs; delete them first with `kubectl delete mdep --all -A`, or disable this check with uninstallGuard.enabled=false", len(all.Items), strings.Join(names, ", "))
}
