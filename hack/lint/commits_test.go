//go:build !race

package lint

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommitSubjectsFitALine(t *testing.T) {
	commits, err := commitSubjects(root, subjectsSince)
	if errors.Is(err, errNoHistory) {
		t.Skipf("commit subjects are not checked: %v", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	none(t, badSubjects(commits))
}

func TestALongCommitSubjectIsFoundInItsFixture(t *testing.T) {
	dir := t.TempDir()
	git := func(in string, arguments ...string) string {
		t.Helper()
		cmd := exec.Command("git", append([]string{"-c", "user.name=a", "-c", "user.email=a@example.test", "-c", "commit.gpgsign=false", "-c", "core.hooksPath=/dev/null"}, arguments...)...)
		cmd.Dir = in
		cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL=/dev/null", "GIT_CONFIG_SYSTEM=/dev/null")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("git %q: %v: %s", arguments, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git(dir, "init", "-q")
	commit := func(subject string) string {
		t.Helper()
		git(dir, "commit", "-q", "--allow-empty", "-m", subject)
		return git(dir, "rev-parse", "HEAD")
	}
	commit(strings.Repeat("o", 100)) // before the fixed point
	since := commit("begin")
	commit(strings.Repeat("é", 72))
	long := commit(strings.Repeat("é", 73))
	stop := commit("End a subject with a stop.")
	commit("Leave it open...")

	commits, err := commitSubjects(dir, since)
	if err != nil {
		t.Fatal(err)
	}
	if len(commits) != 4 {
		t.Errorf("%d commits are read, want 4: %q", len(commits), commits)
	}
	got := badSubjects(commits)
	if len(got) != 2 || !strings.HasPrefix(got[0], "commit "+stop[:7]) || !strings.Contains(got[0], "full stop") ||
		!strings.HasPrefix(got[1], "commit "+long[:7]) || !strings.Contains(got[1], "has 73 characters") {
		t.Errorf("found %q", got)
	}
	if commits, err := commitSubjects(dir, git(dir, "rev-parse", "HEAD")); err != nil || commits != nil {
		t.Errorf("after the last commit are %q, %v", commits, err)
	}

	// Without the history nothing can be checked, which must be an error.
	clone := filepath.Join(t.TempDir(), "clone")
	git(dir, "clone", "-q", "--depth", "1", "file://"+dir, clone)
	if _, err := commitSubjects(clone, since); !errors.Is(err, errNoHistory) || !strings.Contains(err.Error(), "shallow") {
		t.Errorf("a shallow clone: %v", err)
	}
	if _, err := commitSubjects(t.TempDir(), since); !errors.Is(err, errNoHistory) {
		t.Errorf("an export: %v", err)
	}
	if _, err := commitSubjects(dir, strings.Repeat("0", 40)); err == nil || errors.Is(err, errNoHistory) {
		t.Errorf("a fixed point that is not in the history: %v", err)
	}
}
