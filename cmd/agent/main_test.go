package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/utils/ptr"

	"metalfleet.dev/metalfleet/agent"
	"metalfleet.dev/metalfleet/agent/hub"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

func TestBadFlagsSayWhatToDo(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	good := []string{"--name=m1", "--state=" + state, "--kubeconfig=" + filepath.Join(t.TempDir(), "none"), "--engine=/bin/sh", "--listen=127.0.0.1:0"}
	for name, tc := range map[string]struct {
		flags []string
		want  string
	}{
		"a kubeconfig without a name":     {flags: []string{"--name="}, want: "--name is required"},
		"a name that is no label":         {flags: []string{"--name=Mac_1"}, want: "is not a valid MacNode name"},
		"a name that is too long":         {flags: []string{"--name=" + strings.Repeat("m", 53)}, want: "is not a valid MacNode name"},
		"no state":                        {flags: []string{"--state="}, want: "--state is required"},
		"a Mac that has not joined":       {flags: []string{"--kubeconfig="}, want: "has not joined"},
		"a kubeconfig that is not there":  {flags: nil, want: "--kubeconfig"},
		"an unknown kind of sandbox":      {flags: []string{"--engine-sandbox=maybe"}, want: "--engine-sandbox"},
		"an engine that is not there":     {flags: []string{"--engine=/no/such"}, want: "--engine"},
		"a Mac that is none":              {flags: []string{"--mac=chip=i9,memory=1Gi"}, want: "--mac: chip"},
		"a hub that is no address":        {flags: []string{"--hub-endpoint=http://hub"}, want: "--hub-endpoint"},
		"a rate that is none":             {flags: []string{"--download-rate=fast"}, want: "--download-rate"},
		"a rate that stands still":        {flags: []string{"--download-rate=1k"}, want: "--download-rate"},
		"no downloads at all":             {flags: []string{"--downloads-at-once=0"}, want: "--downloads-at-once"},
		"a cache of some size":            {flags: []string{"--cache-limit=some"}, want: "--cache-limit"},
		"a cache of nothing":              {flags: []string{"--cache-limit=0"}, want: "--cache-dir off disables the cache"},
		"less than nothing stays free":    {flags: []string{"--cache-free=-1Gi"}, want: "--cache-free"},
		"a block that is none":            {flags: []string{"--allow-source-cidr=10.0.0.0"}, want: "--allow-source-cidr"},
		"a proxy of another kind":         {flags: []string{"--proxy=socks5://proxy"}, want: "--proxy"},
		"figures for everybody":           {flags: []string{"--metrics=0.0.0.0:1"}, want: "not a loopback address"},
		"a measuring that would not rest": {flags: []string{"--probe-interval=1us"}, want: "--probe-interval"},
		"a word that is no flag":          {flags: []string{"what"}, want: "unexpected argument"},
		"an unknown flag":                 {flags: []string{"--speed=9"}, want: "not defined"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), append(append([]string{"run"}, good...), tc.flags...), &out, &out)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

// TestTheCacheLiesInTheStateFolder unless a flag names another folder.
func TestTheCacheLiesInTheStateFolder(t *testing.T) {
	for name, tc := range map[string]struct {
		flags       []string
		dir         string
		limit, free int64
	}{
		"nothing said":  {flags: nil, dir: "/s/kv", limit: 0, free: 10 << 30},
		"all of it":     {flags: []string{"--cache-dir=/fast/kv", "--cache-limit=200Gi", "--cache-free=0"}, dir: "/fast/kv", limit: 200 << 30, free: 0},
		"turned off":    {flags: []string{"--cache-dir=off"}, dir: "", limit: 0, free: 0},
		"off but bound": {flags: []string{"--cache-dir=off", "--cache-limit=1Gi"}, dir: "", limit: 0, free: 0},
	} {
		t.Run(name, func(t *testing.T) {
			f, err := parse(append([]string{"--state=/s"}, tc.flags...), io.Discard)
			if err != nil {
				t.Fatal(err)
			}
			o, err := f.cache()
			if tc.dir == "" {
				if o != nil || err != nil {
					t.Errorf("%+v, %v", o, err)
				}
				return
			}
			if err != nil || o.Dir != tc.dir || o.Budget.LimitBytes != tc.limit || o.Budget.FloorBytes != tc.free || o.FS == nil {
				t.Errorf("%+v, %v", o, err)
			}
		})
	}
}

func TestVersionIsPrinted(t *testing.T) {
	var out bytes.Buffer
	if err := run(t.Context(), []string{"--version"}, &out, &out); err != nil || out.String() != "agent unversioned\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestTheAdvertisedAddress(t *testing.T) {
	on := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 7443}
	for advertise, want := range map[string]string{"": "127.0.0.1:7443", "mac.example": "mac.example:7443", "mac.example:1": "mac.example:1", "[::1]:2": "::1:2",
		"Annas-MacBook.local": "Annas-MacBook.local:7443", "192.0.2.7": "192.0.2.7:7443", "2001:db8::7": "2001:db8::7:7443", ":9": "127.0.0.1:9"} {
		a, err := address(advertise, on)
		if got := fmt.Sprintf("%s:%d", a.Host, a.Port); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", advertise, got, err, want)
		}
	}
	for _, wrong := range []string{"mac:99999", "https://mac.example", "mac.example/v1", "mac one", "300.1.2.3", "mac.example:7443:1", "[fe80::1", "-mac", "mac..example"} {
		if a, err := address(wrong, on); err == nil || !strings.Contains(err.Error(), "--advertise") {
			t.Errorf("%q: %+v, %v; want an error that names the flag", wrong, a, err)
		}
	}
	for name, ok := range map[string]bool{"studio": true, "studio.local": true, "localhost-2": true, "localhost": false, "LocalHost.": false, "studio.localhost": false} {
		if host, err := hostName(name); (err == nil) != ok || ok && host != name {
			t.Errorf("of the host name %s: %q, %v", name, host, err)
		}
	}
	if a, err := address("", &net.TCPAddr{IP: net.IPv4zero, Port: 7}); err != nil || a.Host == "" || a.Host == "0.0.0.0" {
		t.Errorf("%+v, %v: it cannot be dialed", a, err)
	}
}

func TestJoiningSaysWhatIsMissing(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	torn := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(torn, []byte("metalfleet-join-v1.cut"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		flags []string
		want  string
	}{
		"no state":                 {flags: []string{"--token=x"}, want: "--state is required"},
		"no token":                 {flags: []string{"--state=" + state}, want: "--token is required"},
		"two tokens":               {flags: []string{"--state=" + state, "--token=x", "--token-file=" + torn}, want: "either --token-file or --token"},
		"a word that is no flag":   {flags: []string{"--state=" + state, "token"}, want: "unexpected argument"},
		"a token that was torn":    {flags: []string{"--state=" + state, "--token-file=" + torn}, want: "truncated or modified"},
		"a token that is none":     {flags: []string{"--state=" + state, "--token=secret"}, want: "not a join token"},
		"a file that is not there": {flags: []string{"--state=" + state, "--token-file=" + torn + "s"}, want: "--token-file"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := run(t.Context(), append([]string{"join"}, tc.flags...), &out, &out)
			if err == nil || !strings.Contains(err.Error(), tc.want) || strings.Contains(err.Error(), "secret") {
				t.Errorf("got %v, want %q", err, tc.want)
			}
		})
	}
}

func TestEngineIsNotGivenTheAgentsSecrets(t *testing.T) {
	got := engineEnvironment([]string{"PATH=/bin", "HF_TOKEN=secret", "HTTPS_PROXY=http://user:secret@proxy", "GOOGLE_API_KEY=secret", "METALFLEET_API_KEY=secret",
		"GOMAXPROCS=2", "GODEBUG=x=1", "MLX_X=1", "LC_ALL=C", "PATHS=x", "empty"})
	want := []string{"PATH=/bin", "GOMAXPROCS=2", "GODEBUG=x=1", "MLX_X=1", "LC_ALL=C"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// A default is no setting, so that a MacClass replaces it; a flag with the same value is one.
func TestOnlyFlagsThatAreGivenAreSettings(t *testing.T) {
	for name, tc := range map[string]struct {
		args []string
		want v1alpha1.AgentSettings
	}{
		"none":        {args: nil, want: v1alpha1.AgentSettings{}},
		"the default": {args: []string{"--hub-endpoint", hub.DefaultEndpoint, "--disk-high-percent", "90"}, want: v1alpha1.AgentSettings{HubEndpoint: hub.DefaultEndpoint, DiskMarks: &v1alpha1.DiskMarks{HighPercent: 90, LowPercent: 85}}},
		"rates and a log level": {args: []string{"--download-rate", "1M", "--give-rate", "2M", "--verbose"},
			want: v1alpha1.AgentSettings{LogLevel: v1alpha1.LogDebug, DownloadRate: ptr.To(resource.MustParse("1M")), GiveRate: ptr.To(resource.MustParse("2M"))}},
		"networks and a folder": {args: []string{"--allow-source-cidr", "10.0.0.0/8", "--model-root", "/models"},
			want: v1alpha1.AgentSettings{AllowedSourceCIDRs: []string{"10.0.0.0/8"}, ModelRoot: "/models"}},
	} {
		f, err := parse(tc.args, io.Discard)
		if err != nil {
			t.Fatal(err)
		}
		var c agent.Config
		c.DownloadRate, _ = f.rate()
		c.GiveRate, _ = rate("--give-rate", f.giveRate)
		if c.Sources, err = f.policy(); err != nil {
			t.Fatal(err)
		}
		if got := f.settings(c); !equality.Semantic.DeepEqual(got, tc.want) {
			t.Errorf("%s: %+v, want %+v", name, got, tc.want)
		}
	}
}
