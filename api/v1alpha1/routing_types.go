package v1alpha1

import "slices"

// RoutingSpec routes requests for a deployment's served names to other
// deployments of its namespace: a percentage of them, or all that this
// deployment cannot answer. The routing fields of those deployments have no
// effect on these requests.
// +kubebuilder:validation:XValidation:rule="!has(self.split) || self.split.map(s, s.percent).sum() <= 100",message="the percentages of routing.split must add up to at most 100; this deployment receives the remainder"
// +kubebuilder:validation:XValidation:rule="!has(self.sessionAffinity) || has(self.split)",message="routing.sessionAffinity requires routing.split; remove routing.sessionAffinity or add routing.split"
// +kubebuilder:validation:XValidation:rule="!has(self.fallbackSeconds) || has(self.fallbacks)",message="routing.fallbackSeconds requires routing.fallbacks; remove routing.fallbackSeconds or add routing.fallbacks"
type RoutingSpec struct {
	// split routes a percentage of the requests to other deployments, for
	// example 10 percent to a canary. A deployment without a ready replica
	// receives none.
	// +optional
	// +listType=map
	// +listMapKey=deployment
	// +kubebuilder:validation:MaxItems=8
	Split []RoutingShare `json:"split,omitempty"`
	// sessionAffinity selects which requests stay with one deployment while the
	// split does not change. Default: Conversation. Valid values are:
	// - Conversation: all requests of a conversation, recognized by its first
	//   messages.
	// - APIKey: all requests with the same API key.
	// - None: each request is routed at random.
	// +optional
	SessionAffinity SessionAffinity `json:"sessionAffinity,omitempty"`
	// fallbacks are deployments that answer, in this order, when this
	// deployment has no ready replica, refuses the request, or would let it
	// wait for longer than fallbackSeconds.
	// +optional
	// +listType=set
	// +kubebuilder:validation:MaxItems=8
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=52
	Fallbacks []string `json:"fallbacks,omitempty"`
	// fallbackSeconds is how long, in seconds, a request waits for a busy
	// deployment before the next fallback is tried. Default: 5.
	// +optional
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	FallbackSeconds *int32 `json:"fallbackSeconds,omitempty"`
}

// SessionAffinity selects which requests of a split stay with one deployment.
// +kubebuilder:validation:Enum=Conversation;APIKey;None
type SessionAffinity string

// The values of SessionAffinity.
const (
	SessionAffinityConversation SessionAffinity = "Conversation"
	SessionAffinityAPIKey       SessionAffinity = "APIKey"
	SessionAffinityNone         SessionAffinity = "None"
)

// RoutingShare is a percentage of the requests for one deployment.
type RoutingShare struct {
	// deployment is the name of a ModelDeployment in the same namespace.
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=52
	Deployment string `json:"deployment"`
	// percent is the percentage of requests that the deployment receives, from
	// 0 to 100.
	// +required
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	Percent int32 `json:"percent"`
}

// Targets returns the names of the other deployments in the routing, each once.
func (r RoutingSpec) Targets() []string {
	var out []string
	for _, s := range r.Split {
		out = append(out, s.Deployment)
	}
	for _, name := range r.Fallbacks {
		if !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
