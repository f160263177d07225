package turn

import (
	"fmt"
	"net/url"
	"regexp"
	"strconv"

	corev1 "k8s.io/api/core/v1"

	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// ConfigMapName is the ConfigMap in the operator's namespace that holds the administrator's
// target.
const ConfigMapName = "metalfleet-agents"

// Keys of its data.
const (
	KeyVersion = "version"
	KeyURL     = "url"
	KeySHA256  = "sha256"
	KeyAttempt = "attempt"
	KeyPaused  = "paused"
	KeyMac     = "mac"
	KeyDrain   = "drainSeconds"
	// KeyDowngrade is Refuse or Allow.
	KeyDowngrade = "downgrade"
)

// Target is the agent version that an administrator wants.
type Target struct {
	Version string `json:"version"`
	Source  string `json:"url"`
	SHA256  string `json:"sha256"`
	// Attempt numbers targets: a failed upgrade is tried again only when the number
	// increases.
	Attempt int64 `json:"attempt"`
	Paused  bool  `json:"paused"`
	// Mac is the only one to upgrade; empty means all.
	Mac          string `json:"mac,omitempty"`
	DrainSeconds *int32 `json:"drainSeconds,omitempty"`
	// Downgrade decides whether an older version may be installed.
	Downgrade v1alpha1.DowngradePolicy `json:"downgrade,omitempty"`
}

var (
	versionShape = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._+-]{0,63}$`)
	sourceShape  = regexp.MustCompile(`^https://[^\s@]+$`)
	digestShape  = regexp.MustCompile(`^[0-9a-f]{64}$`)
)

const (
	maxSource = 1024
	maxDrain  = 86400
)

// Check rejects an invalid target.
func (w *Target) Check() error {
	u, err := url.Parse(w.Source)
	switch {
	case !versionShape.MatchString(w.Version):
		return fmt.Errorf("version is %q, want the version that `agent --version` prints, for example v0.4.0", w.Version)
	case err != nil || u.Hostname() == "" || !sourceShape.MatchString(w.Source) || len(w.Source) > maxSource:
		return fmt.Errorf("url is %q, want the https:// URL of a .tar.gz archive, without a password or an @", w.Source)
	case !digestShape.MatchString(w.SHA256):
		return fmt.Errorf("sha256 is %q, want 64 lower-case hex digits, as printed by sha256sum", w.SHA256)
	case w.Attempt < 1:
		return fmt.Errorf("attempt is %d, want at least 1", w.Attempt)
	case w.DrainSeconds != nil && (*w.DrainSeconds < 0 || *w.DrainSeconds > maxDrain):
		return fmt.Errorf("drainSeconds is %d, want 0 to %d", *w.DrainSeconds, maxDrain)
	case w.Downgrade != "" && w.Downgrade != v1alpha1.DowngradeRefuse && w.Downgrade != v1alpha1.DowngradeAllow:
		return fmt.Errorf("downgrade is %q, want %s or %s", w.Downgrade, v1alpha1.DowngradeRefuse, v1alpha1.DowngradeAllow)
	}
	return nil
}

// Order returns the order for a Mac.
func (w *Target) Order() *v1alpha1.AgentOrder {
	return &v1alpha1.AgentOrder{Version: w.Version, Source: w.Source, SHA256: w.SHA256, Attempt: w.Attempt, DrainSeconds: w.DrainSeconds, Downgrade: w.Downgrade}
}

// Data returns the ConfigMap's data for a target.
func (w *Target) Data() map[string]string {
	data := map[string]string{
		KeyVersion: w.Version, KeyURL: w.Source, KeySHA256: w.SHA256,
		KeyAttempt: strconv.FormatInt(w.Attempt, 10), KeyPaused: strconv.FormatBool(w.Paused),
	}
	if w.Mac != "" {
		data[KeyMac] = w.Mac
	}
	if w.Downgrade != "" {
		data[KeyDowngrade] = string(w.Downgrade)
	}
	if w.DrainSeconds != nil {
		data[KeyDrain] = strconv.Itoa(int(*w.DrainSeconds))
	}
	return data
}

// Read parses a target from its ConfigMap. An unknown key is an error, because it was meant
// to have an effect.
func Read(cm *corev1.ConfigMap) (*Target, error) {
	w := &Target{Version: cm.Data[KeyVersion], Source: cm.Data[KeyURL], SHA256: cm.Data[KeySHA256], Mac: cm.Data[KeyMac], Downgrade: v1alpha1.DowngradePolicy(cm.Data[KeyDowngrade])}
	for key, text := range cm.Data {
		var err error
		switch key {
		case KeyVersion, KeyURL, KeySHA256, KeyMac, KeyDowngrade:
		case KeyAttempt:
			w.Attempt, err = strconv.ParseInt(text, 10, 64)
		case KeyPaused:
			w.Paused, err = strconv.ParseBool(text)
		case KeyDrain:
			var n int64
			n, err = strconv.ParseInt(text, 10, 32)
			seconds := int32(n)
			w.DrainSeconds = &seconds
		default:
			return nil, fmt.Errorf("ConfigMap %s has the unknown key %q; use `kubectl metalfleet upgrade-agents` to write the ConfigMap", cm.Name, key)
		}
		if err != nil {
			return nil, fmt.Errorf("ConfigMap %s: %s is %q: %w", cm.Name, key, text, err)
		}
	}
	if err := w.Check(); err != nil {
		return nil, fmt.Errorf("ConfigMap %s: %w", cm.Name, err)
	}
	return w, nil
}
