// Package macnode looks after each Mac: it judges by its Lease whether it is
// alive, gives it its orders, and tells people what it freed.
//
// It owns a MacNode's condition Ready, spec.assignments and spec.inspections,
// and the Events of reclaims and of memory conditions. It refuses to believe a Mac's clock (only a
// change of the Lease that the operator itself saw counts) and its own watch
// (before a Mac is called silent its Lease is read once more, and time during
// which the API server did not answer does not count). It moves nothing where
// more than half of a fleet falls silent at once (Brake). It sends no orders of
// its own making: they are derived by package fleet.
//
// Start reading at Judge, then Sight.Judge in brake.go, watchdog and the four
// reconcilers: Heartbeat, Orders, Reclaims and Alarms.
package macnode

// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes,verbs=get;list;watch;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=macnodes/status,verbs=get;patch
// +kubebuilder:rbac:groups=metalfleet.dev,resources=modelreplicas;modeldeployments,verbs=get;list;watch
// +kubebuilder:rbac:groups=coordination.k8s.io,resources=leases,namespace=metalfleet-system,verbs=get;list;watch
// +kubebuilder:rbac:groups="",resources=events,verbs=create
