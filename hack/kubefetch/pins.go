package main

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// pins is the list of archives: platform, archive, SHA-512, programs.
//
//go:embed pins.txt
var pins string

// pin is one archive of pins.txt.
type pin struct {
	platform, archive, sha512 string
	programs                  []string
	version                   string // "Kubernetes v1.2.3"
}

var (
	sum     = regexp.MustCompile(`^[0-9a-f]{128}$`)
	release = regexp.MustCompile(`^envtest-(v[0-9]+\.[0-9]+\.[0-9]+)/`)
)

// pinFor is the archive for a platform that holds all of the programs.
func pinFor(list, platform string, programs []string) (pin, error) {
	all, err := parsePins(list)
	if err != nil {
		return pin{}, err
	}
	for _, p := range all {
		if p.platform != platform {
			continue
		}
		for _, program := range programs {
			if !slices.Contains(p.programs, program) {
				return pin{}, fmt.Errorf("no release with %s is known", program)
			}
		}
		return p, nil
	}
	return pin{}, fmt.Errorf("no release for %s is known", platform)
}

func parsePins(list string) ([]pin, error) {
	var out []pin
	for i, line := range strings.Split(list, "\n") {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		fields := strings.Fields(line)
		if len(fields) < 4 || !sum.MatchString(fields[2]) || !release.MatchString(fields[1]) {
			return nil, fmt.Errorf("pins.txt:%d: want PLATFORM envtest-VERSION/ARCHIVE SHA-512 PROGRAM..., not %q", i+1, line)
		}
		out = append(out, pin{platform: fields[0], archive: fields[1], sha512: fields[2], programs: fields[3:],
			version: "Kubernetes " + release.FindStringSubmatch(fields[1])[1]})
	}
	return out, nil
}
