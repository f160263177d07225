//go:build !race

package policy

import (
	"strings"
	"testing"

	"sigs.k8s.io/controller-runtime/pkg/client"
)

// TestATenantKeepsTheBindingsOfWatchedNamespaces: neither a gateway nor the operator starts while it may not list the models of
// one of its namespaces, and the role admin of a namespace may delete RoleBindings.
func TestATenantKeepsTheBindingsOfWatchedNamespaces(t *testing.T) {
	const refused, namespaces = "needs the verb update on namespacerules", "system:serviceaccount:kube-system:namespace-controller"
	w := newWorld(t)
	subject := `subjects: [{kind: ServiceAccount, name: metalfleet-gateway, namespace: ` + system + `}]`
	bound := func(name string) string {
		return rbac("RoleBinding", name, ", namespace: tenant") + ", roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: metalfleet-gateway-models}, " + subject + "}"
	}
	gateways, operators, own := bound("metalfleet-gateway-models"), bound("metalfleet-operator-models"), bound("own")
	for _, o := range []string{
		rbac("ClusterRole", "metalfleet-gateway-models", "") + ", rules: [{apiGroups: [metalfleet.dev], resources: [modeldeployments], verbs: [list]}]}",
		rbac("Role", "admin", ", namespace: tenant") + ", rules: [{apiGroups: [rbac.authorization.k8s.io], resources: [rolebindings], verbs: ['*']}]}",
		rbac("RoleBinding", "admin", ", namespace: tenant") + ", roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: admin}, subjects: [{kind: User, name: " + mallory + "}]}",
		gateways, operators, own,
	} {
		if err := w.as(root).Create(t.Context(), object(t, o)); err != nil {
			t.Fatal(err)
		}
	}
	w.play([]attempt{
		{name: "that of gateways", who: mallory, object: gateways, remove: true, refused: refused},
		{name: "that of the operator", who: mallory, object: operators, remove: true, refused: refused},
		{name: "its subjects", who: mallory, object: gateways, patch: `{"subjects":null}`, refused: refused},
		{name: "another binding", who: mallory, object: own, remove: true},
		{name: "an administrator", who: root, object: gateways, remove: true},
		{name: "a namespace that is deleted", who: namespaces, object: gateways, remove: true},
	})
	if err := w.as(mallory).DeleteAllOf(t.Context(), object(t, own), client.InNamespace("tenant"), client.DryRunAll); err == nil || !strings.Contains(err.Error(), refused) {
		t.Errorf("all of the namespace: %v", err)
	}
}
