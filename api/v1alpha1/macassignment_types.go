package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MacAssignment is what the operator assigns to one Mac: replicas, model
// sources to inspect, its class, and the version of its agent. It has the name of its
// MacNode. Only the operator writes it, so that replacing or restoring a MacNode
// cannot unload a Mac.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,shortName=ma
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Replicas",type=integer,JSONPath=`.status.replicas`,description="number of assigned replicas"
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.spec.agent.version`,description="version that the agent should run; empty: its current one"
// +kubebuilder:printcolumn:name="Confirmed",type=integer,JSONPath=`.status.observedGeneration`,description="generation that the Mac may follow",priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type MacAssignment struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard object metadata.
	// +optional
	metav1.ObjectMeta `json:"metadata,omitzero"`
	// spec is what the Mac should hold and do.
	// +optional
	Spec MacAssignmentSpec `json:"spec,omitzero"`
	// status confirms the spec.
	// +optional
	// +kubebuilder:default={"observedGeneration":-1}
	Status MacAssignmentStatus `json:"status,omitzero"`
}

// MacAssignmentSpec is what a Mac should hold and do.
type MacAssignmentSpec struct {
	// assignments are the replicas that the Mac should hold.
	// +optional
	// +listType=map
	// +listMapKey=replicaUID
	// +kubebuilder:validation:MaxItems=64
	Assignments []Assignment `json:"assignments,omitempty"`
	// inspections are the model sources that the Mac should inspect.
	// +optional
	// +listType=map
	// +listMapKey=id
	// +kubebuilder:validation:MaxItems=64
	Inspections []Inspection `json:"inspections,omitempty"`
	// agent is the agent version that the Mac should run. When it is absent, the
	// Mac keeps its current version.
	// +optional
	Agent *AgentOrder `json:"agent,omitempty"`
	// class is the class of the Mac, with its settings. It is absent when the Mac
	// has none.
	// +optional
	Class *AssignedClass `json:"class,omitempty"`
}

// MacAssignmentStatus confirms the spec. A Mac follows a spec only after the
// operator has confirmed it; until then it keeps the last one that was
// confirmed. A copy that was restored from a backup, or a spec that was changed
// by others, is therefore never followed.
type MacAssignmentStatus struct {
	// observedGeneration is the generation of the spec that the operator
	// confirms. It is -1 until there is one.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// uid is the UID of the object that the operator confirms.
	// +optional
	// +kubebuilder:validation:MaxLength=64
	UID string `json:"uid,omitempty"`
	// replicas is the number of assigned replicas.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=2147483647
	Replicas int32 `json:"replicas"`
}

// Confirmed reports whether the operator has confirmed this spec of this object.
func (a *MacAssignment) Confirmed() bool {
	return a.UID != "" && a.Status.UID == string(a.UID) && a.Status.ObservedGeneration == a.Generation
}

// MacAssignmentList is a list of MacAssignments.
// +kubebuilder:object:root=true
type MacAssignmentList struct {
	metav1.TypeMeta `json:",inline"`
	// metadata is the standard list metadata.
	// +optional
	metav1.ListMeta `json:"metadata,omitzero"`
	// items are the MacAssignments of the list.
	Items []MacAssignment `json:"items"`
}
