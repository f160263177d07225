package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// Condition types. Each condition has exactly one writer.
//
//	on          condition                                          writer
//	deployment  Ready Available Reconciling Stalled Accepted       operator (modeldeployment)
//	            Fits Placed Downloaded Progressing Degraded
//	            Routed Prefetched
//	replica     Placed                                             operator (placement)
//	            Ready Evicting, and copies of the Mac's five       operator (modelreplica)
//	assignment  Downloaded Admitted Loaded Serving Released        agent
//	Mac         Ready Reachable IdentityClash                      operator (macnode)
//	            AgentCurrent                                       operator (agentupgrade)
//	            ClassApplied                                       operator (macclass)
//	            WritesSuspended                                    operator (identity)
//	            Accepting MemoryPressure WiredStranded             agent
//	            MemoryDiverged GuardInactive
//	class       Accepted Applied                                   operator (macclass)
const (
	// ConditionReady: all desired replicas of a deployment serve its current
	// spec; a replica serves, is not draining, and its Mac is alive; a Mac has
	// renewed its Lease recently.
	ConditionReady = "Ready"
	// ConditionAvailable: at least one replica accepts requests, be it of a
	// previous revision.
	ConditionAvailable = "Available"
	// ConditionReconciling: the operator is working towards the current spec.
	// Tools that use kstatus wait while it is True.
	ConditionReconciling = "Reconciling"
	// ConditionStalled: the operator cannot reach the current spec until a
	// person changes something. Tools that use kstatus report a failure. It is
	// never True together with Ready or Reconciling.
	ConditionStalled = "Stalled"
	// ConditionAccepted: the source was inspected and the served names are
	// free.
	ConditionAccepted = "Accepted"
	// ConditionFits: at least one Mac could hold a replica if the Mac were
	// empty.
	ConditionFits = "Fits"
	// ConditionPlaced: all desired replicas (or this one) have a Mac.
	ConditionPlaced = "Placed"
	// ConditionDownloaded: the weights are on the Mac's disk and verified.
	ConditionDownloaded = "Downloaded"
	// ConditionProgressing: a rollout, a download or a load is in progress.
	ConditionProgressing = "Progressing"
	// ConditionDegraded: something failed and is being retried.
	ConditionDegraded = "Degraded"
	// ConditionRouted: all deployments that spec.routing names exist.
	ConditionRouted = "Routed"
	// ConditionPrefetched: as many Macs as spec.prefetch requests keep the weights
	// of the current revision.
	ConditionPrefetched = "Prefetched"
	// ConditionAdmitted: the Mac has reserved the memory.
	ConditionAdmitted = "Admitted"
	// ConditionLoaded: the engine has loaded the model.
	ConditionLoaded = "Loaded"
	// ConditionServing: the engine accepts requests.
	ConditionServing = "Serving"
	// ConditionReleased: the engine has ended and the freed memory is recorded.
	ConditionReleased = "Released"
	// ConditionEvicting: the Mac of a replica has a NoExecute taint that the replica
	// tolerates only for a while, since the time of the last transition, or not at all.
	// Absent otherwise.
	ConditionEvicting = "Evicting"
	// ConditionAccepting: the agent accepts requests and assignments; false
	// while it shuts down or is replaced.
	ConditionAccepting = "Accepting"
	// ConditionReachable: at least one gateway can connect to the Mac. The replicas
	// of an unreachable Mac are not Ready. Absent until a gateway has tried.
	ConditionReachable = "Reachable"
	// ConditionIdentityClash: two machines run an agent with the identity of this
	// Mac; the one that began later has stopped.
	ConditionIdentityClash = "IdentityClash"
	// ConditionWritesSuspended: the Mac may not write its MacNode and its Lease,
	// because it wrote far more than an agent does. Absent until that happens.
	ConditionWritesSuspended = "WritesSuspended"
	// ConditionAgentCurrent: the agent has the version that the administrator
	// requested or, without a request, one that this operator supports.
	ConditionAgentCurrent = "AgentCurrent"
	// ConditionClassApplied: the agent runs with the current settings of the Mac's
	// class. Absent on a Mac without a class.
	ConditionClassApplied = "ClassApplied"
	// ConditionApplied: every Mac of a class runs with its current settings.
	ConditionApplied = "Applied"
	// ConditionMemoryPressure: engines use more memory than the soft threshold
	// of the Mac's ceiling.
	ConditionMemoryPressure = "MemoryPressure"
	// ConditionWiredStranded: wired memory belongs to no live process. Only a
	// reboot frees it, and placement skips the Mac.
	ConditionWiredStranded = "WiredStranded"
	// ConditionMemoryDiverged: memory measurements of an engine or of the Mac
	// disagree by more than the tolerance, so some memory is in use but
	// unaccounted for.
	ConditionMemoryDiverged = "MemoryDiverged"
	// ConditionGuardInactive: a memory guard cannot act, because a probe fails,
	// an engine does not accept its limits, or the dimensions of a model are
	// unknown.
	ConditionGuardInactive = "GuardInactive"
)

// Reasons for the memory conditions of a Mac.
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

// Reasons for Ready, on all three kinds.
const (
	ReasonReady         = "Ready"
	ReasonNotReady      = "NotReady"
	ReasonScaledToZero  = "ScaledToZero"
	ReasonSuspended     = "Suspended"     // spec.suspend is true
	ReasonMacSilent     = "MacSilent"     // the Mac's Lease was not renewed for 30 s
	ReasonMacGone       = "MacGone"       // the MacNode was deleted, or its Lease was not renewed for 180 s
	ReasonBreakerOpen   = "BreakerOpen"   // the circuit breaker is open: more than half of the Macs went silent at once, and nothing is moved
	ReasonNeverReported = "NeverReported" // the Mac's agent has not joined yet
	ReasonReporting     = "Reporting"
	ReasonDraining      = "Draining"
	ReasonPending       = "Pending"
	ReasonPlacing       = "Placing" // placement has not evaluated the replica yet
)

// Reasons for Available.
const (
	ReasonAvailable        = "Available"
	ReasonPreviousRevision = "PreviousRevision" // only replicas of a previous revision accept requests
)

// Reasons for Reachable. MacUnreachable is a reason of a replica's Ready as well.
const (
	ReasonReached        = "Reached"
	ReasonMacUnreachable = "MacUnreachable"
)

// Reasons for IdentityClash.
const (
	ReasonAgentFenced = "AgentFenced" // an agent with a copy of the Mac's state folder was stopped
	ReasonOneAgent    = "OneAgent"
)

// Reasons for WritesSuspended.
const (
	ReasonTooManyWrites = "TooManyWrites" // the Mac may be stolen: it fills etcd
	ReasonWritesAllowed = "WritesAllowed" // the suspension has ended
)

// Reasons for AgentCurrent, and for Accepting while an agent is replaced.
const (
	ReasonAgentCurrent     = "AgentCurrent"
	ReasonAgentSupported   = "AgentSupported"   // no version is requested, and this one is supported
	ReasonAgentOutdated    = "AgentOutdated"    // another version is requested, and the upgrade has not started
	ReasonAgentUpgrading   = "AgentUpgrading"   // the upgrade is in progress
	ReasonAgentRolledBack  = "AgentRolledBack"  // the requested version failed, and the previous one runs again
	ReasonAgentRefused     = "AgentRefused"     // the archive does not match the request
	ReasonAgentTooOld      = "AgentTooOld"      // older than this operator supports
	ReasonAgentTooNew      = "AgentTooNew"      // newer than this operator
	ReasonAgentUnversioned = "AgentUnversioned" // the version of the agent or of the operator cannot be compared
)

// Reasons for Accepted.
const (
	ReasonAccepted     = "Accepted"
	ReasonInspecting   = "Inspecting"
	ReasonNoMacs       = "NoMacs" // no ready Mac can inspect the source
	ReasonNameConflict = "NameConflict"
	ReasonSpecTooLarge = "SpecTooLarge" // replicas would repeat more bytes than an object of the cluster may have
	// ReasonInvalidAffinity: no label can match an expression of spec.placement.affinity.
	ReasonInvalidAffinity = "InvalidAffinity"
	ReasonUnknownSize     = "UnknownSize" // the file headers lack dimensions that are needed to compute memory
	// Reasons for a failed inspection, as the Mac reports them; copied to
	// Accepted.
	ReasonSourceNotFound    = "SourceNotFound"
	ReasonSourceForbidden   = "SourceForbidden"
	ReasonSourceUnreachable = "SourceUnreachable"
	ReasonDigestMismatch    = "DigestMismatch"
	ReasonReportRefused     = "ReportRefused"  // the report of a Mac contradicts the deployment
	ReasonSourceDisputed    = "SourceDisputed" // Macs found different contents, none of them more often than others
	ReasonInvalidModel      = "InvalidModel"
	ReasonUnsupportedModel  = "UnsupportedModel"
	ReasonContextTooLong    = "ContextTooLong"
	ReasonCacheUseless      = "CacheUseless"     // prefixCache.diskLimit is set for a model that has no prefix cache
	ReasonLimitTooSmall     = "LimitTooSmall"    // memory.limit is less than the model needs
	ReasonInspectionFailed  = "InspectionFailed" // a Mac reported an unknown reason
	// Reasons that concern the credentials for a hub, also for a download.
	ReasonGatedModel   = "GatedModel"   // the licence must be accepted on the hub
	ReasonTokenRefused = "TokenRefused" // the token is wrong, expired or lacks read permission
	ReasonTokenMissing = "TokenMissing" // the token has not reached the Mac
	// ReasonPriorityClassNotFound: the PriorityClass does not exist.
	ReasonPriorityClassNotFound = "PriorityClassNotFound"
	// ReasonProfileNotFound: the ModelProfile does not exist.
	ReasonProfileNotFound = "ProfileNotFound"
	// ReasonProfileConflict: a field of the deployment contradicts one of its
	// ModelProfile.
	ReasonProfileConflict = "ProfileConflict"
	// Reasons that concern the Secret of model.secretRef.
	ReasonSecretNotFound  = "SecretNotFound"
	ReasonSecretInvalid   = "SecretInvalid"   // the Secret has no key token, or the wrong type
	ReasonSecretForbidden = "SecretForbidden" // the operator is not allowed to read the Secret
)

// Reasons for Accepted of NamespaceRules.
const (
	ReasonUnknownNamespace   = "UnknownNamespace"   // a listed namespace does not exist
	ReasonContradictingRules = "ContradictingRules" // rules exclude one another
)

// Reasons for Accepted of a MacClass.
const (
	ReasonUnknownTimeZone = "UnknownTimeZone" // hours have a time zone that is none
	ReasonEmptyWave       = "EmptyWave"       // a wave of the release selects no Mac of the class
)

// Reasons for Applied of a MacClass and ClassApplied of a Mac.
const (
	ReasonClassApplied    = "ClassApplied"
	ReasonClassPending    = "ClassPending"    // the agent has not applied the current settings yet
	ReasonClassNotFound   = "ClassNotFound"   // the Mac names a class that does not exist
	ReasonRestartRequired = "RestartRequired" // a setting takes effect when the agent is restarted
	ReasonSettingsRefused = "SettingsRefused" // the agent cannot apply a setting
)

// Reasons for Routed.
const (
	ReasonTargetsFound   = "TargetsFound"
	ReasonTargetNotFound = "TargetNotFound" // routing names a deployment that does not exist in the namespace
)

// Reasons for Fits and Placed.
const (
	ReasonFits         = "Fits"
	ReasonTooLarge     = "TooLarge"
	ReasonPlaced       = "Placed"
	ReasonNoRoom       = "NoRoom"
	ReasonNoCandidates = "NoCandidates"
	// ReasonOverQuota: the NamespaceRules do not allow the namespace to
	// reserve more memory.
	ReasonOverQuota = "OverQuota"
	// ReasonRulesMissing: the operator requires NamespaceRules and there are
	// none, so nothing new is placed.
	ReasonRulesMissing = "RulesMissing"
	// ReasonPreempting: replicas with a lower priority drain to make room for
	// this one.
	ReasonPreempting = "Preempting"
	// ReasonPrefetched: the weights are on the disk, and no engine runs
	// (spec.prefetch).
	ReasonPrefetched = "Prefetched"
	// ReasonPrefetching: a Mac keeps the weights of spec.prefetch, or downloads
	// weights before its replica of the old revision drains to make room for this
	// one.
	ReasonPrefetching = "Prefetching"
	// ReasonSwapping: a replica of the old revision drains to make room for
	// this one.
	ReasonSwapping = "Swapping"
	// ReasonPreempted: a replica with a higher priority takes its room.
	ReasonPreempted = "Preempted"
)

// ReasonTainted is the reason for Evicting.
const ReasonTainted = "Tainted" // the Mac has a NoExecute taint

// Reasons for the five conditions of an assignment, and for Progressing and
// Degraded.
const (
	ReasonWaiting          = "Waiting"
	ReasonDownloading      = "Downloading"
	ReasonVerified         = "Verified"
	ReasonDownloadFailed   = "DownloadFailed"
	ReasonDiskFull         = "DiskFull"
	ReasonReserved         = "Reserved"
	ReasonInsufficientRoom = "InsufficientMemory"
	ReasonOnDemand         = "OnDemand"       // the first request loads the model
	ReasonWaitingRoom      = "WaitingForRoom" // busy models use the memory
	ReasonHostUnsettled    = "HostUnsettled"  // an engine ended uncleanly; the Mac's memory is checked before the next start
	ReasonLoading          = "Loading"
	ReasonLoaded           = "Loaded"
	ReasonLoadFailed       = "LoadFailed"
	ReasonServing          = "Serving"
	ReasonEngineCrashed    = "EngineCrashed"
	ReasonBackOff          = "BackOff"
	ReasonStopped          = "Stopped"
	ReasonReleased         = "Released"
	ReasonHeld             = "Held"
	ReasonCanaryFailed     = "CanaryFailed" // the engine loaded its model but generated no token
	ReasonStable           = "Stable"
	ReasonShuttingDown     = "ShuttingDown"
	ReasonMacSleeps        = "MacSleeps"    // the Mac is about to sleep
	ReasonMacShutsDown     = "MacShutsDown" // the Mac is about to shut down or restart
	ReasonSurging          = "Surging"      // this and the next one: states of a rollout
	ReasonReplacing        = "Replacing"
	ReasonPaused           = "Paused"
	ReasonHalted           = "Halted"
	ReasonProgressDeadline = "ProgressDeadlineExceeded" // no progress, and no previous revision to fall back to
	ReasonCreateFailed     = "ReplicaCreateFailed"      // a quota, the API server or the bound of a namespace's replicas refused a replica
	ReasonReconcileFailed  = "ReconcileFailed"          // the operator met another error and retries
)

// Labels, annotations, finalizers and field managers.
const (
	// LabelDeployment on a replica is the name of its deployment.
	LabelDeployment = "metalfleet.dev/deployment"
	// LabelRevision on a replica is the name of its revision.
	LabelRevision = "metalfleet.dev/revision"
	// AnnotationPassed on a replica lists the keys of labels and annotations that it
	// has from spec.replicaMetadata of its deployment, as JSON.
	AnnotationPassed = "metalfleet.dev/passed"
	// AnnotationLost with the value "true" on a MacNode declares the Mac lost:
	// the circuit breaker does not protect its replicas, and the deletion of the
	// MacNode does not wait for them.
	AnnotationLost = "metalfleet.dev/lost"
	// AnnotationFenced on the Lease of a Mac names an agent that found another one
	// with its identity and stopped, and the time: HOLDER RFC3339.
	AnnotationFenced = "metalfleet.dev/fenced-agent"
	// AnnotationRetiring with the value "true" on a ModelReplica marks it for
	// removal once it is idle; gateways prefer other replicas. The autoscaler
	// sets and removes it.
	AnnotationRetiring = "metalfleet.dev/retiring"
	// AnnotationEvict with the value "true" on a ModelReplica has its deployment
	// create a successor, and remove this replica once the successor serves. People who
	// drain a Mac set it.
	AnnotationEvict = "metalfleet.dev/evict"
	// AnnotationSpec on a ControllerRevision holds the part of the deployment's
	// spec that the revision was created from, as JSON. A rollback restores it.
	AnnotationSpec = "metalfleet.dev/spec"
	// LabelEnrolment on a MacNode, and on objects that the operator created for an
	// enrolment token, is the name of the enrolment.
	LabelEnrolment = "metalfleet.dev/enrolment"
	// AnnotationEnrolledKey on a MacNode is the fingerprint of the key with which the
	// Mac enrolled: no other key may enrol under its name.
	AnnotationEnrolledKey = "metalfleet.dev/enrolled-key"
	// LabelMac is the name of the Mac that the operator created an object for.
	LabelMac = "metalfleet.dev/mac"
	// FinalizerReplicas keeps a deployment until its replicas are released.
	FinalizerReplicas = "metalfleet.dev/replicas"
	// FinalizerRelease keeps a replica until its Mac has released it.
	FinalizerRelease = "metalfleet.dev/release"
	// FinalizerDrain keeps a MacNode until its replicas are released.
	FinalizerDrain = "metalfleet.dev/drain"
	// FinalizerIdentity keeps a MacNode until the objects that the operator
	// created for its agent are deleted.
	FinalizerIdentity = "metalfleet.dev/identity"
	// ManagerAgent is the agent's field manager.
	ManagerAgent = "metalfleet-agent"
	// ManagerOrders is the operator's field manager of MacAssignments.
	ManagerOrders = "metalfleet-orders"
	// ManagerOperator is the operator's field manager of everything else.
	ManagerOperator = "metalfleet-operator"
	// ManagerAutoscaler is the operator's field manager of status.autoscaling.
	ManagerAutoscaler = "metalfleet-autoscaler"
	// ManagerUpgrades is the operator's field manager of the agent in a
	// MacAssignment, of AgentCurrent, and of status.upgrade of MacClasses.
	ManagerUpgrades = "metalfleet-upgrades"
	// ManagerClasses is the operator's field manager of the class in a
	// MacAssignment, of ClassApplied, and of the status of MacClasses.
	ManagerClasses = "metalfleet-classes"
	// ManagerWrites is the operator's field manager of WritesSuspended.
	ManagerWrites = "metalfleet-writes"
	// ManagerPlacement is the operator's field manager of nodeName and Placed.
	ManagerPlacement = "metalfleet-placement"
)

// Timeouts of failure detection, in seconds; docs/concepts/architecture.md explains
// them.
const (
	LeaseRenewSeconds = 10
	MacSilentSeconds  = 30
	MacGoneSeconds    = 180
	AvoidSeconds      = 600
)

// HubTokenKeyPrefix is the prefix of the keys in a Mac's Secret that hold
// credentials for model sources. The rest of the key is the tokenRef that
// assignments and inspections name.
const HubTokenKeyPrefix = "hub-token."

// CredentialS3 is the prefix of a value in a Mac's Secret that holds an access
// key of a bucket instead of a token: "s3:ID:SECRET" or "s3:ID:SECRET:SESSION",
// each part escaped as in a query. The token of a hub contains no colon.
const CredentialS3 = "s3:"

// CredentialOCI is the prefix of a value that holds the login of a registry:
// "oci:NAME:PASSWORD", escaped in the same way.
const CredentialOCI = "oci:"

// AgentObjectName returns the name of a Mac's Lease, ServiceAccount and Secret.
func AgentObjectName(mac string) string { return "mac-" + mac }

// EngineFile returns the prefix of the names of the files that an agent keeps
// for one replica and epoch in its state folder: the log of its engines is
// logs/NAME.log.
func EngineFile(replicaUID string, epoch int64) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s/%d", replicaUID, epoch))
	return hex.EncodeToString(sum[:6])
}
