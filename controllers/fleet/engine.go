package fleet

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/footprint"
)

// Defaults of ContextSpec.
const (
	defaultTokens    = 8192
	defaultSequences = 4
)

// Engine is everything that determines the behaviour of an engine process. A revision
// stores all of it and its hash covers all of it, so that every edit takes effect. Where a
// replica runs and how it is replaced is not part of it.
type Engine struct {
	// Source, SHA256, Revision and Files are from the spec.
	Source   string   `json:"source"`
	SHA256   string   `json:"sha256,omitempty"`
	Revision string   `json:"revision,omitempty"`
	Files    []string `json:"files,omitempty"`
	// Adapters are from the spec.
	Adapters []v1alpha1.AdapterSpec `json:"adapters,omitempty"`
	// Model is the result of the inspection.
	Model model.Record `json:"model"`
	// Context with its defaults.
	Context v1alpha1.ContextLimits `json:"context"`
	// CacheQueueBytes of memory hold what waits to be written to a Mac's disk; 0 without
	// prefixCache.diskLimit. The size on disk is not part of the engine: the agent grants it.
	CacheQueueBytes int64 `json:"cacheQueueBytes,omitempty"`
	// SharedPrefixes are prompt prefixes whose cache all tenants share.
	SharedPrefixes []string `json:"sharedPrefixes,omitempty"`
	// Sampling has defaults and limits of requests; ChatTemplate replaces the model's.
	Sampling     v1alpha1.SamplingSpec `json:"sampling,omitzero"`
	ChatTemplate string                `json:"chatTemplate,omitempty"`
	// LimitBytes is memory.limit, or 0.
	LimitBytes int64 `json:"limitBytes,omitempty"`
	// RestartedAt is rollout.restartedAt: a restart makes another revision of the same
	// engine.
	RestartedAt *metav1.Time `json:"restartedAt,omitempty"`
}

// OfSource reports whether the engine is for the sources that a spec names. The token for
// reading it does not matter. A record of another source does not match: the operator never
// wrote it.
func (e Engine) OfSource(spec *v1alpha1.ModelDeploymentSpec) bool {
	m := spec.Model.Resolved()
	if !slices.Equal(e.Adapters, spec.Adapters) || len(e.Model.Adapters) != len(spec.Adapters) {
		return false
	}
	return e.Source == m.Source && e.Model.Source == m.Source && e.SHA256 == m.SHA256 && e.Revision == m.Revision && slices.Equal(e.Files, m.Files)
}

// Refusal is a reason and a message for the condition Accepted.
type Refusal struct {
	Reason, Message string
}

func (r *Refusal) Error() string { return r.Reason + ": " + r.Message }

// Resolve builds the engine of a deployment from the record of its source, or returns why
// that is impossible.
func Resolve(spec *v1alpha1.ModelDeploymentSpec, record model.Record) (Engine, *Refusal) {
	m := spec.Model.Resolved()
	e := Engine{Source: m.Source, SHA256: m.SHA256, Revision: m.Revision, Files: m.Files, Model: record, SharedPrefixes: spec.PrefixCache.SharedPrefixes,
		Adapters: spec.Adapters, Sampling: spec.Sampling, ChatTemplate: spec.ChatTemplate, RestartedAt: spec.Rollout.RestartedAt}
	if err := record.Facts.Validate(); err != nil {
		return e, &Refusal{v1alpha1.ReasonUnknownSize, err.Error() + "; the memory requirement cannot be computed without it, use a file whose header contains it"}
	}
	if task := record.Facts.TaskOf(); len(spec.Adapters) > 0 && (task != model.Generate || record.Format != model.FormatSafetensors) {
		return e, &Refusal{v1alpha1.ReasonUnsupportedModel, "adapters need a model in safetensors that generates text; remove spec.adapters, or choose another model"}
	}
	trained := record.Facts.ContextTokens
	if t := spec.Context.MaxTokens; t > trained {
		return e, &Refusal{v1alpha1.ReasonContextTooLong, fmt.Sprintf(
			"context.maxTokens is %d, but the model was trained for %d; lower context.maxTokens to at most %d", t, trained, trained)}
	}
	e.Context = resolveContext(spec.Context, trained)
	if spec.PrefixCache.DiskLimit != nil {
		if task := record.Facts.TaskOf(); task != model.Generate {
			return e, &Refusal{v1alpha1.ReasonCacheUseless, fmt.Sprintf(
				"prefixCache.diskLimit is only valid for models that generate text, but the task of this model is %s; remove prefixCache.diskLimit", task)}
		}
		queue, err := footprint.CacheQueue(record.Facts)
		if err != nil {
			return e, &Refusal{v1alpha1.ReasonUnknownSize, err.Error()}
		}
		e.CacheQueueBytes = queue
	}
	if spec.Memory.Limit != nil {
		e.LimitBytes = spec.Memory.Limit.Value()
	}
	need, err := e.Estimate()
	if err != nil {
		return e, &Refusal{v1alpha1.ReasonUnknownSize, err.Error()}
	}
	if e.LimitBytes > 0 && e.LimitBytes < need {
		return e, &Refusal{v1alpha1.ReasonLimitTooSmall, fmt.Sprintf(
			"memory.limit is %d bytes (%s), but the model with this context needs an estimated %d bytes (%s); raise memory.limit, lower context.kvCacheTokens, or remove memory.limit",
			e.LimitBytes, v1alpha1.FormatBytes(e.LimitBytes), need, v1alpha1.FormatBytes(need))}
	}
	return e, nil
}

// resolveContext applies the defaults. If cache tokens are set, they bound the default of
// tokens, so that one request of full length always fits.
func resolveContext(c v1alpha1.ContextSpec, trained int64) v1alpha1.ContextLimits {
	out := v1alpha1.ContextLimits(c)
	if out.MaxTokens == 0 {
		out.MaxTokens = min(defaultTokens, trained)
		if c.KVCacheTokens > 0 {
			out.MaxTokens = min(out.MaxTokens, c.KVCacheTokens)
		}
	}
	if out.MaxConcurrentRequests == 0 {
		out.MaxConcurrentRequests = defaultSequences
	}
	if out.KVCacheTokens == 0 {
		out.KVCacheTokens = 2 * out.MaxTokens
	}
	return out
}

// Cache returns the cache limits of a new replica of the engine, for the deployment's
// current disk size.
func (e Engine) Cache(s v1alpha1.PrefixCacheSpec) v1alpha1.PrefixCacheLimits {
	return Cache(s, v1alpha1.PrefixCacheLimits{QueueBytes: e.CacheQueueBytes})
}

// Cache returns the updated cache limits of an existing replica: the disk size follows the
// deployment, if the replica's engine uses the disk at all.
func Cache(s v1alpha1.PrefixCacheSpec, old v1alpha1.PrefixCacheLimits) v1alpha1.PrefixCacheLimits {
	if s.DiskLimit != nil && old.QueueBytes > 0 {
		old.DiskBytes = s.DiskLimit.Value()
	}
	return old
}

// Estimate is the memory that the engine needs, computed from the file headers.
func (e Engine) Estimate() (int64, error) {
	terms, err := footprint.Estimate(e.Model.Facts, footprint.Context{
		Tokens: e.Context.MaxTokens, Sequences: e.Context.MaxConcurrentRequests, CacheTokens: e.Context.KVCacheTokens, CacheQueue: e.CacheQueueBytes, Adapters: e.Model.AdapterBytes()})
	if err != nil {
		return 0, err
	}
	return terms.Total(), nil
}

// ReservedBytes is the memory reserved for a replica: the estimate, or the user's limit if
// that is larger.
func (e Engine) ReservedBytes() (int64, error) {
	need, err := e.Estimate()
	if err != nil {
		return 0, err
	}
	return max(need, e.LimitBytes), nil
}

// Encode returns the engine as a revision stores it.
func (e Engine) Encode() ([]byte, error) {
	b, err := json.Marshal(e)
	if err != nil {
		return nil, fmt.Errorf("encode revision: %w", err)
	}
	return b, nil
}

// Hash identifies the engine; equal hashes mean equal engines, see Identity.
func (e Engine) Hash() (string, error) {
	e = e.Identity()
	b, err := e.Encode()
	if err != nil {
		return "", err
	}
	return Digest(string(b)), nil
}

// Identity is the engine without what does not distinguish it from another: the Macs that
// vouched for the record, and the features, which depend on the version of their agents.
func (e Engine) Identity() Engine {
	e.Model.VouchedBy, e.Model.Features = nil, nil
	return e
}

// DecodeEngine parses the output of Encode.
func DecodeEngine(b []byte) (Engine, error) {
	var e Engine
	if err := json.Unmarshal(b, &e); err != nil {
		return e, fmt.Errorf("decode revision: %w", err)
	}
	return e, nil
}

// Digest returns a short name for some parts: 12 hex digits of the SHA-256 over the parts,
// each terminated by a zero byte.
func Digest(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil))[:12]
}
