package sandbox

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestProfileAllowsOnlyTheEnginesOwnPaths(t *testing.T) {
	text := profile(Rules{
		Read: []string{`/models/a "quoted" name.gguf`}, Write: []string{"/fast/cache/model-a"}, Socket: "/state/run/e.sock",
	}, "/usr/local/metalfleet/current/engine")
	lines := strings.Split(strings.TrimSpace(text), "\n")
	at := map[string]int{}
	for i, l := range lines {
		if strings.Count(l, "(") != strings.Count(l, ")") {
			t.Errorf("unbalanced: %s", l)
		}
		at[l] = i
	}
	// A later rule decides, so what is allowed again must follow its refusal.
	for _, order := range [][2]string{
		{"(deny process-exec)", `(allow process-exec (literal "/usr/local/metalfleet/current/engine"))`},
		{`(deny file-read* (subpath "/state"))`, `(allow file-read* file-write-create file-write-data file-write-unlink (literal "/state/run/e.sock"))`},
		{`(deny file-read* (subpath "/fast/cache"))`, `(allow file-read* file-write-create file-write-data file-write-unlink (subpath "/fast/cache/model-a"))`},
		{`(allow file-read* file-write-create file-write-data file-write-unlink (subpath "/fast/cache/model-a"))`, `(deny file-write-create file-write-unlink (literal "/fast/cache/model-a"))`},
		{`(allow file-read* file-write-create file-write-data file-write-unlink (subpath "/fast/cache/model-a"))`, "(deny file-write-create (vnode-type SYMLINK))"},
		{`(allow file-read* file-write-create file-write-data file-write-unlink (literal "/state/run/e.sock"))`, "(deny file-write-create (vnode-type SYMLINK))"},
		{
			`(allow file-read* file-write-create file-write-data file-write-unlink (literal "/state/run/e.sock"))`,
			`(deny file-write-create (require-all (literal "/state/run/e.sock") (require-any (vnode-type REGULAR-FILE) (vnode-type DIRECTORY))))`,
		},
		{"(deny ipc-posix* ipc-sysv* file-lock)", "(allow ipc-posix-shm-read*)"},
		{"(deny file-write*)", `(allow file-read* file-write-create file-write-data file-write-unlink (subpath "/fast/cache/model-a"))`},
		{`(deny file-read* (subpath "/models"))`, `(allow file-read* (subpath "/models/a \"quoted\" name.gguf"))`},
		{`(deny file-read* (subpath "/usr/local"))`, `(allow file-read* (subpath "/usr/local/metalfleet/current"))`},
		{`(deny file-read* (subpath "/Users"))`, `(allow file-read* (subpath "/models/a \"quoted\" name.gguf"))`},
	} {
		before, ok1 := at[order[0]]
		after, ok2 := at[order[1]]
		if !ok1 || !ok2 || before >= after {
			t.Errorf("want %s and, later, %s in\n%s", order[0], order[1], text)
		}
	}
	// A path that is too long for a socket has it elsewhere.
	elsewhere := profile(Rules{Read: []string{"/state/weights/model"}, State: "/state", Socket: "/private/tmp/metalfleet-1/e.sock"}, "/usr/local/metalfleet/current/engine")
	denied, allowed := strings.Index(elsewhere, `(deny file-read* (subpath "/state"))`), strings.Index(elsewhere, `(allow file-read* (subpath "/state/weights/model"))`)
	if denied < 0 || allowed < denied {
		t.Errorf("the agent's folder may be read in\n%s", elsewhere)
	}
	for _, always := range []string{
		"(deny network-outbound)", "(deny process-fork)", "(deny file-link file-clone)",
		"(deny job-creation lsopen appleevent-send mach-priv-task-port)",
		"(deny signal (target others))", "(deny system-sched)", "(deny process-info-setcontrol (target others))",
		"(deny syscall-unix (syscall-number 203))",
	} {
		if _, ok := at[always]; !ok {
			t.Errorf("want %s", always)
		}
	}
}

// TestAnEngineChangesNothingButItsOwnFiles: no folder that it shares with others, as Darwin's of compiled kernels, and
// no attribute, flag, mode, owner or access list of a file.
func TestAnEngineChangesNothingButItsOwnFiles(t *testing.T) {
	text := profile(Rules{Read: []string{"/models/a"}, Write: []string{"/fast/cache/model-a"}, Socket: "/state/run/e.sock"}, "/usr/local/metalfleet/current/engine")
	var got []string
	for l := range strings.Lines(text) {
		if strings.HasPrefix(l, "(allow") && strings.Contains(l, "file-write") {
			got = append(got, strings.TrimSpace(l))
		}
	}
	if want := []string{
		`(allow file-write-data (literal "/dev/null"))`,
		`(allow file-read* file-write-create file-write-data file-write-unlink (subpath "/fast/cache/model-a"))`,
		`(allow file-read* file-write-create file-write-data file-write-unlink (literal "/state/run/e.sock"))`,
	}; !slices.Equal(got, want) {
		t.Errorf("what may be written:\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// TestOtherModelsAreOutOfReachWhereverTheyLie: next to the model, also in a folder of the system.
func TestOtherModelsAreOutOfReachWhereverTheyLie(t *testing.T) {
	for model, want := range map[string]string{
		"/models/org/name": "/models", "/Volumes/fast/name": "/Volumes", "/opt/models/name": "/opt",
		"/private/var/models/org/name": "/private/var/models", "/private/var/lib/models/name": "/private/var/lib",
		"/private/var/db/models/name": "/private/var/db/models", "/private/etc/models/name": "/private/etc/models",
		"/Library/Models/name": "/Library/Models", "/Library/Application Support/models/name": "/Library/Application Support/models",
		"/usr/share/models/name": "/usr/share/models", "/usr/models/name": "/usr/models", "/Applications/An.app/name": "/Applications/An.app",
		// No folder of others, or one that every program needs.
		"/model": "", "/Library/model": "", "/usr/lib/model": "", "/private/var/folders/a/b/T/models/name": "",
	} {
		text := profile(Rules{Read: []string{model}, Socket: "/state/run/e.sock"}, "/usr/local/metalfleet/current/engine")
		rule, own := "(deny file-read* (subpath "+quoted(want)+"))", "(allow file-read* (subpath "+quoted(model)+"))"
		if at := strings.Index(text, rule); want != "" && (at < 0 || at > strings.Index(text, own)) {
			t.Errorf("%s: want %s and, later, %s in\n%s", model, rule, own, text)
		}
		if got := around(model); want == "" && len(got) > 0 {
			t.Errorf("%s: %q is out of reach, want nothing", model, got)
		}
	}
}

// TestAFolderThatIsMissingEndsNoEngine: the disk of the cache may be full or away, and the engine
// runs without it. The folders next to it stay out of reach.
func TestAFolderThatIsMissingEndsNoEngine(t *testing.T) {
	dir := t.TempDir()
	disk, link := filepath.Join(dir, "disk"), filepath.Join(dir, "link")
	if err := errors.Join(os.Mkdir(disk, 0o700), os.Symlink(disk, link)); err != nil {
		t.Fatal(err)
	}
	real, err := filepath.EvalSymlinks(disk)
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		filepath.Join(link, "cache", "model"): filepath.Join(real, "cache", "model"),
		filepath.Join(link, "model"):          filepath.Join(real, "model"),
	} {
		r, err := resolved(Rules{Write: []string{path}, Socket: filepath.Join(dir, "e.sock")})
		if err != nil || !slices.Equal(r.Write, []string{want}) {
			t.Errorf("%s: %q, %v; want %s", path, r.Write, err, want)
		}
	}
	if _, err := resolved(Rules{Read: []string{filepath.Join(link, "model")}, Socket: filepath.Join(dir, "e.sock")}); err == nil {
		t.Error("a model that is missing is not noticed")
	}
}

// TestALinkInPlaceOfAFolderIsNotAllowed: an engine that was taken over puts it in place of its
// cache, and the next one gets the rights to no other folder.
func TestALinkInPlaceOfAFolderIsNotAllowed(t *testing.T) {
	state, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	own, socket := filepath.Join(state, "cache", "model-a"), filepath.Join(state, "run", "e.sock")
	if err := errors.Join(os.Mkdir(filepath.Dir(own), 0o700), os.Mkdir(filepath.Dir(socket), 0o700), os.Symlink(state, own)); err != nil {
		t.Fatal(err)
	}
	r, err := resolved(Rules{Write: []string{own}, Socket: socket})
	if err != nil || !slices.Equal(r.Write, []string{own}) {
		t.Errorf("%q may be written, %v; want %s", r.Write, err, own)
	}
	if text := profile(r, "/usr/local/metalfleet/current/engine"); strings.Contains(text, "(allow file-read* file-write-create file-write-data file-write-unlink (subpath "+quoted(state)+"))") {
		t.Errorf("the agent's folder may be written in\n%s", text)
	}
}
