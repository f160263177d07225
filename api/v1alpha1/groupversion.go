// Package v1alpha1 holds the three kinds of the group metalfleet.dev:
// ModelDeployment (what a user wants served), ModelReplica (one copy of it on
// one Mac) and MacNode (one Mac: its figures and its orders).
//
// It owns the schema, the names of conditions, reasons, labels and finalizers,
// and nothing that acts. It refuses what cannot be meant, by bounds and by CEL
// rules whose messages say what to do. It imports apimachinery, core/v1 and
// api/model alone.
//
// Start reading at modeldeployment_types.go; conditions.go lists who writes
// which condition.
//
// +kubebuilder:object:generate=true
// +groupName=metalfleet.dev
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is metalfleet.dev/v1alpha1.
var GroupVersion = schema.GroupVersion{Group: "metalfleet.dev", Version: "v1alpha1"}

// AddToScheme registers the kinds.
func AddToScheme(s *runtime.Scheme) error {
	s.AddKnownTypes(GroupVersion,
		&ModelDeployment{}, &ModelDeploymentList{},
		&ModelReplica{}, &ModelReplicaList{},
		&MacNode{}, &MacNodeList{})
	metav1.AddToGroupVersion(s, GroupVersion)
	return nil
}
