//go:build oracle

package hub

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"testing"

	"metalfleet.dev/metalfleet/agent/hub/hubtest"
)

var python = flag.String("python", "../../../.cache/oracle/hub/bin/python", "Python with huggingface-hub (test/oracle/install.sh hub)")

func TestTheOfficialClientDownloadsFromOurHub(t *testing.T) {
	if err := run(t.Context(), *python); err != nil {
		t.Fatal(err)
	}
}

// got is what client.py prints.
type got struct {
	Version      string            `json:"version"`
	Commit       string            `json:"commit"`
	Tree         []string          `json:"tree"`
	Snapshot     map[string]string `json:"snapshot"`
	File         map[string]string `json:"file"`
	Private      map[string]string `json:"private"`
	WithoutToken string            `json:"withoutToken"`
	WrongToken   string            `json:"wrongToken"`
	Gated        string            `json:"gated"`
	GatedGiven   map[string]string `json:"gatedGiven"`
	NoRevision   string            `json:"noRevision"`
	NoFile       string            `json:"noFile"`
}

func run(ctx context.Context, python string) (err error) {
	files := map[string]hubtest.File{"config.json": {Content: []byte("{}")}, "sub/b.bin": {Content: slices.Repeat([]byte("weights "), 1<<17), LFS: true, Xet: true}}
	for i := range 5 {
		files[fmt.Sprintf("more/%d.txt", i)] = hubtest.File{Content: fmt.Appendf(nil, "file %d", i)}
	}
	public, private, gated := hubtest.Of(files), hubtest.Of(files), hubtest.Of(files)
	public.Refs["refs/pr/1"] = public.Refs["main"]
	private.Private, private.Token = true, "secret-1"
	gated.Gated, gated.Token = true, "secret-2"
	hub := &hubtest.Hub{PageSize: 3}
	hub.Put("org/model", public)
	hub.Put("org/private", private)
	hub.Put("org/gated", gated)
	server := httptest.NewServer(hub)
	defer server.Close()
	large := httptest.NewServer(hub)
	defer large.Close()
	hub.Large = large.URL
	dir, err := os.MkdirTemp("", "mf-hub-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	cmd := exec.CommandContext(ctx, python, "client.py", dir)
	cmd.Env = append(os.Environ(), "HF_ENDPOINT="+server.URL, "HF_HOME="+dir+"/home", "HF_HUB_DISABLE_PROGRESS_BARS=1", "HF_HUB_DISABLE_TELEMETRY=1", "HF_HUB_DISABLE_XET=1", "NO_PROXY=127.0.0.1")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return fmt.Errorf("the client: %w", err)
	}
	var g got
	if err := json.Unmarshal(out, &g); err != nil {
		return fmt.Errorf("the client printed %q: %w", out, err)
	}
	if err := g.check(files, public.Refs["main"]); err != nil {
		return err
	}
	fmt.Printf("huggingface_hub %s: %d files of a snapshot, one at a pull request, a private repository, a gated one and five refusals as of the Hub itself\n", g.Version, len(files))
	return nil
}

// check compares with what is published.
func (g got) check(files map[string]hubtest.File, commit string) error {
	want := map[string]string{}
	for p, f := range files {
		sum := sha256.Sum256(f.Content)
		want[p] = hex.EncodeToString(sum[:])
	}
	one := map[string]string{"b.bin": want["sub/b.bin"]}
	switch {
	case g.Commit != commit:
		return fmt.Errorf("commit %q, want %s", g.Commit, commit)
	case !slices.Equal(g.Tree, slices.Sorted(maps.Keys(want))):
		return fmt.Errorf("tree %q, want %q", g.Tree, slices.Sorted(maps.Keys(want)))
	case !maps.Equal(g.Snapshot, want), !maps.Equal(g.Private, want):
		return fmt.Errorf("snapshot %v, private %v, want %v", g.Snapshot, g.Private, want)
	case !maps.Equal(g.File, one), !maps.Equal(g.GatedGiven, one):
		return fmt.Errorf("one file %v, of a gated repository %v, want %v", g.File, g.GatedGiven, one)
	}
	for what, c := range map[string][2]string{
		"without a token": {g.WithoutToken, "RepositoryNotFoundError"}, "gated": {g.Gated, "GatedRepoError"},
		"a wrong token":    {g.WrongToken, "HfHubHTTPError"},
		"no such revision": {g.NoRevision, "RevisionNotFoundError"}, "no such file": {g.NoFile, "EntryNotFoundError"},
	} {
		if c[0] != c[1] && !(what == "no such file" && c[0] == "RemoteEntryNotFoundError") {
			return fmt.Errorf("%s: the client says %s, want %s", what, c[0], c[1])
		}
	}
	return nil
}
