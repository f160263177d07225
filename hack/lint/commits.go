package lint

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"unicode/utf8"
)

// subjectsSince is the last commit whose subject may be longer.
const subjectsSince = "efe3330996d85753f64ef15fd8fba6153d71f4fc"

// longSubject is the maximum length of a subject in characters: the width that git log and
// code reviews show without truncation.
const longSubject = 72

// errNoHistory means that the commits are not there: an export of the sources, or
// a shallow clone.
var errNoHistory = errors.New("the history is missing")

// commitSubjects lists the commits of a repository after one, as "HASH SUBJECT".
func commitSubjects(dir, since string) ([]string, error) {
	git := func(arguments ...string) (string, error) {
		cmd := exec.Command("git", arguments...)
		cmd.Dir = dir
		out, err := cmd.Output()
		return strings.TrimSpace(string(out)), err
	}
	shallow, err := git("rev-parse", "--is-shallow-repository")
	if err != nil {
		return nil, fmt.Errorf("%w: %s is no checkout of git", errNoHistory, dir)
	}
	if _, err := git("merge-base", "--is-ancestor", since, "HEAD"); err != nil {
		if shallow == "true" {
			return nil, fmt.Errorf("%w: this is a shallow clone; git fetch --unshallow brings it", errNoHistory)
		}
		return nil, fmt.Errorf("commit %s is not in the history of HEAD: name another in subjectsSince", since)
	}
	out, err := git("log", "--format=%h %s", since+"..HEAD")
	if err != nil {
		return nil, fmt.Errorf("git log: %w", err)
	}
	if out == "" {
		return nil, nil
	}
	return strings.Split(out, "\n"), nil
}

// badSubjects lists the subjects that are too long or end with a full stop.
func badSubjects(commits []string) (out []string) {
	for _, c := range commits {
		hash, subject, _ := strings.Cut(c, " ")
		switch n := utf8.RuneCountInString(subject); {
		case n > longSubject:
			out = append(out, fmt.Sprintf("commit %s: its subject has %d characters, at most %d are allowed: %s", hash, n, longSubject, subject))
		case strings.HasSuffix(subject, ".") && !strings.HasSuffix(subject, "..."):
			out = append(out, fmt.Sprintf("commit %s: its subject ends with a full stop: %s", hash, subject))
		}
	}
	return out
}
