package desired

import (
	"fmt"
	"net/netip"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/store"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// checkSettings leaves out what cannot be meant, so that the agent stays as it was
// started there, and names it.
func checkSettings(s v1alpha1.AgentSettings) (good v1alpha1.AgentSettings, refused string) {
	good = *s.DeepCopy()
	var wrong []string
	refuse := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	if s.LogLevel != "" && s.LogLevel != v1alpha1.LogInfo && s.LogLevel != v1alpha1.LogDebug {
		refuse("unknown logLevel %q: this agent supports Info and Debug", s.LogLevel)
		good.LogLevel = ""
	}
	for _, size := range []struct {
		name  string
		said  *resource.Quantity
		least int64
		good  **resource.Quantity
	}{
		{"cacheLimit", s.CacheLimit, 1, &good.CacheLimit}, {"cacheFree", s.CacheFree, 0, &good.CacheFree},
		{"downloadRate", s.DownloadRate, download.MinRate, &good.DownloadRate}, {"giveRate", s.GiveRate, download.MinRate, &good.GiveRate},
	} {
		if size.said != nil && size.said.Value() < size.least {
			refuse("%s is %s, want at least %d", size.name, size.said, size.least)
			*size.good = nil
		}
	}
	if u, err := url.Parse(s.HubEndpoint); s.HubEndpoint != "" && (err != nil || download.CheckURL(u) != nil || u.RawQuery != "" || u.Fragment != "") {
		refuse("hubEndpoint %q is not a valid URL of a hub; write https://HOST", s.HubEndpoint)
		good.HubEndpoint = ""
	}
	for _, text := range s.AllowedSourceCIDRs {
		if _, err := netip.ParsePrefix(text); err != nil {
			refuse("allowedSourceCIDRs: %q is not a CIDR such as 10.0.0.0/8", text)
			good.AllowedSourceCIDRs = nil
		}
	}
	if m := s.DiskMarks; m != nil {
		if err := (store.Marks{High: int(m.HighPercent), Low: int(m.LowPercent)}).Check(); err != nil {
			refuse("diskMarks: %v", err)
			good.DiskMarks = nil
		}
	}
	if s.ModelRoot != "" && (!filepath.IsAbs(s.ModelRoot) || filepath.Clean(s.ModelRoot) != strings.TrimRight(s.ModelRoot, "/")) {
		refuse("modelRoot %q is not an absolute path", s.ModelRoot)
		good.ModelRoot = ""
	}
	if q := s.QuietHours; q != nil {
		if _, _, err := q.Open(time.Now()); err != nil || q.DownloadRate.Value() < download.MinRate {
			refuse("quietHours: want known hours and a downloadRate of at least %d: %v", download.MinRate, err)
			good.QuietHours = nil
		}
	}
	return good, strings.Join(wrong, "; ")
}
