// Package v1alpha1 defines the kinds of the API group metalfleet.dev:
// ModelDeployment (a model that a user wants served), ModelReplica (one copy of
// it on one Mac), MacNode (one Mac: its capacity, its settings and its reports),
// MacAssignment (what the operator assigns to one Mac), MacClass (what many Macs
// have in common), ModelProfile (settings that deployments have in common) and
// NamespaceRules (what each namespace may use).
//
// The package owns the schema and the names of conditions, reasons, labels and
// finalizers; it contains no behaviour. Validation limits and CEL rules reject
// invalid objects, with messages that name the fix. It imports apimachinery,
// core/v1 and api/model only.
//
// Start reading at modeldeployment_types.go; conditions.go lists the writer of
// each condition.
//
// +kubebuilder:object:generate=true
// +groupName=metalfleet.dev
// +kubebuilder:ac:generate=true
// +kubebuilder:ac:output:package=../applyconfiguration
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is metalfleet.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "metalfleet.dev", Version: "v1alpha1"}

// AddToScheme registers the kinds and their lists.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ModelDeployment{}, &ModelDeploymentList{},
		&ModelReplica{}, &ModelReplicaList{},
		&MacNode{}, &MacNodeList{},
		&MacAssignment{}, &MacAssignmentList{},
		&MacClass{}, &MacClassList{},
		&ModelProfile{}, &ModelProfileList{},
		&NamespaceRules{}, &NamespaceRulesList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
