// Package macnode manages each Mac: it judges by its Lease whether the Mac is alive, writes
// its assignments, and emits Events about freed memory.
//
// It owns a MacNode's condition Ready, its MacAssignment except the agent, the finalizer
// that drains a Mac before its MacNode is deleted, and the Events of reclaims and of memory
// conditions. It does not trust a Mac's clock (only a
// change of the Lease that the operator itself observed counts) nor its own watch (before a
// Mac is called silent its Lease is read once more, and time during which the API server
// did not respond does not count). It moves nothing if more than half of a fleet falls
// silent at once (Breaker). Assignments are derived by package fleet.
//
// Start reading at Judge, then Observation.Judge in breaker.go, watchdog and the five
// reconcilers: Heartbeat, Orders, Deletion, Reclaims and Alerts.
package macnode

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes/status,verbs=get;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macassignments,verbs=get;list;watch;create;patch;delete
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macassignments/status,verbs=get;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas,verbs=get;list;watch;delete
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modeldeployments;namespacerules,verbs=get;list;watch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=metalfleet-system,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=events,verbs=create
