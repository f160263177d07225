package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Conditions. One writer each.
//
//	on          condition                                          writer
//	deployment  Ready Accepted Fits Placed Downloaded              operator (modeldeployment)
//	            Progressing Degraded Routed
//	replica     Placed                                             operator (placement)
//	            Ready, and copies of the Mac's five                operator (modelreplica)
//	assignment  Downloaded Admitted Loaded Serving Released        agent
//	Mac         Ready                                              operator (macnode)
//	            AgentCurrent                                       operator (agentupgrade)
//	            Accepting MemoryPressure WiredStranded             agent
//	            MemoryDiverged GuardInactive
const (
	// ConditionReady: a deployment has enough ready replicas; a replica
	// serves, its Mac is alive and it is not draining; a Mac was heard from lately.
	ConditionReady = "Ready"
	// ConditionAccepted: the source was inspected and the names are free.
	ConditionAccepted = "Accepted"
	// ConditionFits: at least one Mac could hold a replica if it were empty.
	ConditionFits = "Fits"
	// ConditionPlaced: every wanted replica (or this one) has a Mac.
	ConditionPlaced = "Placed"
	// ConditionDownloaded: the weights are on the Mac's disk, verified.
	ConditionDownloaded = "Downloaded"
	// ConditionProgressing: a rollout, a download or a load goes on.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: something failed and is tried again.
	ConditionDegraded = "Degraded"
	// ConditionRouted: every deployment that routing names is there.
	ConditionRouted = "Routed"
	// ConditionAdmitted: the Mac's ledger reserved the memory.
	ConditionAdmitted = "Admitted"
	// ConditionLoaded: the engine holds the model.
	ConditionLoaded = "Loaded"
	// ConditionServing: requests are answered.
	ConditionServing = "Serving"
	// ConditionReleased: the engine is gone and what it freed is recorded.
	ConditionReleased = "Released"
	// ConditionAccepting: the agent takes orders; false while it shuts down.
	ConditionAccepting = "Accepting"
	// ConditionAgentCurrent: the Mac's agent is the version that the administrator
	// wants, or with no wish one that this operator serves.
	ConditionAgentCurrent = "AgentCurrent"
	// ConditionMemoryPressure: engines are above the soft mark of the Mac's ceiling.
	ConditionMemoryPressure = "MemoryPressure"
	// ConditionWiredStranded: memory is wired that no living process owns; only
	// a reboot brings it back, and placement skips the Mac.
	ConditionWiredStranded = "WiredStranded"
	// ConditionMemoryDiverged: the gauges of an engine, or of the Mac, disagree
	// by more than a bound: bytes are held that nobody accounts for.
	ConditionMemoryDiverged = "MemoryDiverged"
	// ConditionGuardInactive: a guard cannot act (a probe fails, an engine does
	// not take its limits, a model's dimensions are unknown).
	ConditionGuardInactive = "GuardInactive"
)

// Reasons of the Mac's memory conditions.
const (
	ReasonBelowSoftMark  = "BelowSoftMark"
	ReasonSoftPressure   = "SoftPressure"
	ReasonHardPressure   = "HardPressure"
	ReasonEmergency      = "Emergency"
	ReasonNothingWired   = "NothingStranded"
	ReasonWiredUnowned   = "WiredUnowned"
	ReasonNotMeasurable  = "NotMeasurable"
	ReasonGaugesAgree    = "GaugesAgree"
	ReasonEngineDiverged = "EngineDiverged"
	ReasonResidue        = "Residue"
	ReasonGuardsActive   = "GuardsActive"
	ReasonProbeFails     = "ProbeFails"
	ReasonLimitsNotTaken = "LimitsNotTaken"
)

// Reasons of Ready, on all three kinds.
const (
	ReasonReady          = "Ready"
	ReasonNotReady       = "NotReady"
	ReasonScaledToZero   = "ScaledToZero"
	ReasonMacSilent      = "MacSilent"      // the Mac's Lease was not renewed for 30 s
	ReasonMacGone        = "MacGone"        // the MacNode was deleted, or silent for 180 s
	ReasonBrakeHeld      = "BrakeHeld"      // more than half of the fleet fell silent at once: nothing is moved
	ReasonNeverHeardFrom = "NeverHeardFrom" // the Mac's agent has not joined yet
	ReasonHeardFrom      = "HeardFrom"
	ReasonDraining       = "Draining"
	ReasonPending        = "Pending"
)

// Reasons of AgentCurrent, and of Accepting while an agent is replaced.
const (
	ReasonAgentCurrent     = "AgentCurrent"
	ReasonAgentSupported   = "AgentSupported"   // no version is wanted, and this one is served
	ReasonAgentOutdated    = "AgentOutdated"    // another is wanted, and its turn has not come
	ReasonAgentUpgrading   = "AgentUpgrading"   // it is its turn
	ReasonAgentRolledBack  = "AgentRolledBack"  // the version that is wanted did not prove itself
	ReasonAgentRefused     = "AgentRefused"     // the archive is not what was ordered
	ReasonAgentTooOld      = "AgentTooOld"      // older than this operator serves
	ReasonAgentTooNew      = "AgentTooNew"      // newer than this operator
	ReasonAgentUnversioned = "AgentUnversioned" // its version, or ours, cannot be compared
)

// Reasons of Accepted.
const (
	ReasonAccepted     = "Accepted"
	ReasonInspecting   = "Inspecting"
	ReasonNoMacs       = "NoMacs" // no ready Mac may look at the source
	ReasonNameConflict = "NameConflict"
	ReasonUnknownSize  = "UnknownSize" // the headers do not say enough to compute memory
	// What a Mac reports of an inspection; used for Accepted as it is.
	ReasonSourceNotFound    = "SourceNotFound"
	ReasonSourceForbidden   = "SourceForbidden"
	ReasonSourceUnreachable = "SourceUnreachable"
	ReasonDigestMismatch    = "DigestMismatch"
	ReasonInvalidModel      = "InvalidModel"
	ReasonUnsupportedModel  = "UnsupportedModel"
	ReasonContextTooLong    = "ContextTooLong"
	ReasonCacheUseless      = "CacheUseless"     // cache.ssd for a model that remembers no prompts
	ReasonLimitTooSmall     = "LimitTooSmall"    // memory.limit is less than what the model needs
	ReasonInspectionFailed  = "InspectionFailed" // a Mac gave a reason that is not one of these
	// What a hub says of a token; also of a download.
	ReasonGatedModel   = "GatedModel"   // its licence is to be accepted on the hub
	ReasonTokenRefused = "TokenRefused" // the token is wrong, expired or may not read
	ReasonTokenMissing = "TokenMissing" // it has not reached the Mac
	// ReasonPriorityClassNotFound: priorityClassName names no PriorityClass.
	ReasonPriorityClassNotFound = "PriorityClassNotFound"
	// What the operator finds behind model.secretRef.
	ReasonSecretNotFound  = "SecretNotFound"
	ReasonSecretInvalid   = "SecretInvalid"   // no key token, or another kind of Secret
	ReasonSecretForbidden = "SecretForbidden" // the operator may not read it
)

// Reasons of Routed.
const (
	ReasonTargetsFound   = "TargetsFound"
	ReasonTargetNotFound = "TargetNotFound" // routing names a deployment that is not in the namespace
)

// Reasons of Fits and Placed.
const (
	ReasonFits         = "Fits"
	ReasonTooLarge     = "TooLarge"
	ReasonPlaced       = "Placed"
	ReasonNoRoom       = "NoRoom"
	ReasonNoCandidates = "NoCandidates"
	// ReasonOverQuota: the administrator's rules let the namespace promise no more.
	ReasonOverQuota = "OverQuota"
	// ReasonPriorityForbidden: the rules keep its PriorityClass from the namespace.
	ReasonPriorityForbidden = "PriorityForbidden"
	// ReasonInvalidRules: the rules cannot be read, so nothing new is placed.
	ReasonInvalidRules = "InvalidRules"
	// ReasonPreempting: replicas of a lower priority drain for this one.
	ReasonPreempting = "Preempting"
	// ReasonPrefetching: its weights are fetched where a replica of the old
	// revision is to drain for this one.
	ReasonPrefetching = "Prefetching"
	// ReasonSwapping: a replica of the old revision drains for this one.
	ReasonSwapping = "Swapping"
	// ReasonPreempted: its room goes to a replica of a higher priority.
	ReasonPreempted = "Preempted"
)

// Reasons of the five conditions of an assignment, Progressing and Degraded.
const (
	ReasonWaiting          = "Waiting"
	ReasonDownloading      = "Downloading"
	ReasonVerified         = "Verified"
	ReasonDownloadFailed   = "DownloadFailed"
	ReasonDiskFull         = "DiskFull"
	ReasonReserved         = "Reserved"
	ReasonInsufficientRoom = "InsufficientMemory"
	ReasonOnDemand         = "OnDemand"       // the first request loads it
	ReasonWaitingRoom      = "WaitingForRoom" // memory is promised to others that are busy
	ReasonHostUnsettled    = "HostUnsettled"  // an engine ended uncleanly; the host's memory is looked at first
	ReasonLoading          = "Loading"
	ReasonLoaded           = "Loaded"
	ReasonLoadFailed       = "LoadFailed"
	ReasonServing          = "Serving"
	ReasonEngineCrashed    = "EngineCrashed"
	ReasonBackOff          = "BackOff"
	ReasonStopped          = "Stopped"
	ReasonReleased         = "Released"
	ReasonHeld             = "Held"
	ReasonCanaryFailed     = "CanaryFailed" // the engine loaded its model and generated no token
	ReasonStable           = "Stable"
	ReasonShuttingDown     = "ShuttingDown"
	ReasonMacSleeps        = "MacSleeps"    // the Mac said that it is about to
	ReasonMacShutsDown     = "MacShutsDown" // or to restart
	ReasonSurging          = "Surging"      // this and the next: states of a rollout
	ReasonReplacing        = "Replacing"
	ReasonPaused           = "Paused"
	ReasonHalted           = "Halted"
	ReasonProgressDeadline = "ProgressDeadlineExceeded" // no progress, and nothing to fall back to
)

// Labels, annotations, finalizers and field managers.
const (
	// LabelDeployment on a replica names its deployment.
	LabelDeployment = "metalfleet.dev/deployment"
	// LabelRevision on a replica names its revision.
	LabelRevision = "metalfleet.dev/revision"
	// AnnotationLost on a MacNode, "true": an administrator gave it up, and the
	// brake does not hold it.
	AnnotationLost = "metalfleet.dev/lost"
	// AnnotationRetiring on a ModelReplica, "true": it goes once it is idle, and
	// gateways prefer others. The autoscaler sets it and takes it back.
	AnnotationRetiring = "metalfleet.dev/retiring"
	// AnnotationSpec on a ControllerRevision holds what of the deployment's spec
	// made it, as JSON: what an undo writes back.
	AnnotationSpec = "metalfleet.dev/spec"
	// LabelMac on what the operator makes for a Mac names it.
	LabelMac = "metalfleet.dev/mac"
	// FinalizerReplicas on a deployment: its replicas are not released yet.
	FinalizerReplicas = "metalfleet.dev/replicas"
	// FinalizerRelease on a replica: its Mac has not released it yet.
	FinalizerRelease = "metalfleet.dev/release"
	// FinalizerIdentity on a MacNode: what the operator made for its agent is still there.
	FinalizerIdentity = "metalfleet.dev/identity"
	// ManagerAgent is the agent's field manager.
	ManagerAgent = "metalfleet-agent"
	// ManagerOrders is the operator's field manager of assignments and inspections.
	ManagerOrders = "metalfleet-orders"
	// ManagerOperator is the operator's field manager of everything else.
	ManagerOperator = "metalfleet-operator"
	// ManagerAutoscaler is the operator's field manager of status.autoscaling.
	ManagerAutoscaler = "metalfleet-autoscaler"
	// ManagerUpgrades is the operator's field manager of spec.agent and AgentCurrent.
	ManagerUpgrades = "metalfleet-upgrades"
	// ManagerPlacement is the operator's field manager of nodeName and Placed.
	ManagerPlacement = "metalfleet-placement"
)

// Timers of failure detection, in seconds; design and reasons in docs/concepts/architecture.md.
const (
	LeaseRenewSeconds = 10
	MacSilentSeconds  = 30
	MacGoneSeconds    = 180
	AvoidSeconds      = 600
)

// HubTokenKeyPrefix begins the keys of hub tokens in a Mac's Secret; what
// follows is the tokenRef that orders name.
const HubTokenKeyPrefix = "hub-token."

// CredentialS3 begins, in a Mac's Secret, what is an access key of a bucket and
// no token: "s3:ID:SECRET" or "s3:ID:SECRET:SESSION", each part escaped as in a
// query. A hub's token has no colon.
const CredentialS3 = "s3:"

// CredentialOCI begins what is a login of a registry: "oci:NAME:PASSWORD", in the
// same way.
const CredentialOCI = "oci:"

// AgentObjectName is the name of a Mac's Lease, ServiceAccount and Secret.
func AgentObjectName(mac string) string { return "mac-" + mac }

// EngineFile begins the names of what an agent keeps of one replica and epoch
// in its state folder: the log of its engines is logs/NAME.log there.
func EngineFile(replicaUID string, epoch int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", replicaUID, epoch))
	return hex.EncodeToString(sum[:6])
}
