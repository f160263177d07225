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
)

func TestBadFlagsSayWhatToDo(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	good := []string{"--name=m1", "--state=" + state, "--kubeconfig=" + filepath.Join(t.TempDir(), "none"), "--engine=/bin/sh", "--listen=127.0.0.1:0"}
	for name, tc := range map[string]struct {
		flags []string
		want  string
	}{
		"a kubeconfig without a name":     {[]string{"--name="}, "--name is required"},
		"a name that is no label":         {[]string{"--name=Mac_1"}, "is not a valid MacNode name"},
		"a name that is too long":         {[]string{"--name=" + strings.Repeat("m", 53)}, "is not a valid MacNode name"},
		"no state":                        {[]string{"--state="}, "--state is required"},
		"a Mac that has not joined":       {[]string{"--kubeconfig="}, "has not joined"},
		"a kubeconfig that is not there":  {nil, "--kubeconfig"},
		"an unknown kind of sandbox":      {[]string{"--engine-sandbox=maybe"}, "--engine-sandbox"},
		"an engine that is not there":     {[]string{"--engine=/no/such"}, "--engine"},
		"a Mac that is none":              {[]string{"--mac=chip=i9,memory=1Gi"}, "--mac: chip"},
		"a hub that is no address":        {[]string{"--hub-endpoint=http://hub"}, "--hub-endpoint"},
		"a rate that is none":             {[]string{"--download-rate=fast"}, "--download-rate"},
		"a rate that stands still":        {[]string{"--download-rate=1k"}, "--download-rate"},
		"no downloads at all":             {[]string{"--downloads-at-once=0"}, "--downloads-at-once"},
		"a cache of some size":            {[]string{"--cache-limit=some"}, "--cache-limit"},
		"a cache of nothing":              {[]string{"--cache-limit=0"}, "--cache-dir off disables the cache"},
		"less than nothing stays free":    {[]string{"--cache-free=-1Gi"}, "--cache-free"},
		"a block that is none":            {[]string{"--allow-source-cidr=10.0.0.0"}, "--allow-source-cidr"},
		"figures for everybody":           {[]string{"--metrics=0.0.0.0:1"}, "not a loopback address"},
		"a measuring that would not rest": {[]string{"--probe-interval=1us"}, "--probe-interval"},
		"a word that is no flag":          {[]string{"what"}, "unexpected argument"},
		"an unknown flag":                 {[]string{"--speed=9"}, "not defined"},
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
		"nothing said":  {nil, "/s/kv", 0, 10 << 30},
		"all of it":     {[]string{"--cache-dir=/fast/kv", "--cache-limit=200Gi", "--cache-free=0"}, "/fast/kv", 200 << 30, 0},
		"turned off":    {[]string{"--cache-dir=off"}, "", 0, 0},
		"off but bound": {[]string{"--cache-dir=off", "--cache-limit=1Gi"}, "", 0, 0},
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
	for advertise, want := range map[string]string{"": "127.0.0.1:7443", "mac.example": "mac.example:7443", "mac.example:1": "mac.example:1", "[::1]:2": "::1:2"} {
		a, err := address(advertise, on)
		if got := fmt.Sprintf("%s:%d", a.Host, a.Port); err != nil || got != want {
			t.Errorf("%q: %s, %v; want %s", advertise, got, err, want)
		}
	}
	if _, err := address("mac:99999", on); err == nil {
		t.Error("a port that is none was taken")
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
		"no state":                 {[]string{"--token=x"}, "--state is required"},
		"no token":                 {[]string{"--state=" + state}, "--token is required"},
		"two tokens":               {[]string{"--state=" + state, "--token=x", "--token-file=" + torn}, "either --token-file or --token"},
		"a word that is no flag":   {[]string{"--state=" + state, "token"}, "unexpected argument"},
		"a token that was torn":    {[]string{"--state=" + state, "--token-file=" + torn}, "truncated or modified"},
		"a token that is none":     {[]string{"--state=" + state, "--token=secret"}, "not a join token"},
		"a file that is not there": {[]string{"--state=" + state, "--token-file=" + torn + "s"}, "--token-file"},
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
	got := engineEnvironment([]string{"PATH=/bin", "HF_TOKEN=secret", "HTTPS_PROXY=http://user:secret@proxy", "GOMAXPROCS=2", "MLX_X=1", "LC_ALL=C", "PATHS=x", "empty"})
	want := []string{"PATH=/bin", "GOMAXPROCS=2", "MLX_X=1", "LC_ALL=C"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}
