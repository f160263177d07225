package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/agent/upgrade"
	"metalfleet.dev/metalfleet/hack/image"
)

// sums is the list of digests: one of all files of a release, and one inside the
// Mac's archive, which install.sh compares.
const sums = "SHA256SUMS"

// entry is a file of an archive.
type entry struct {
	name  string
	isRun bool // it is a program or a script
	body  []byte
}

// artefact is one file of a release before it is written.
type artefact struct {
	name     string
	programs []*program
	// more lists its parts other than Go modules.
	more []module
	// write writes it to a path, with its notice.
	write func(to, notice string) error
}

// make builds and writes everything.
func (r *release) make(ctx context.Context) error {
	list := programs()
	if err := r.build(ctx, list); err != nil {
		return err
	}
	sdk, err := output(ctx, r.root, nil, "bash", "hack/mlx/fetch.sh", "darwin-arm64")
	if err != nil {
		return err
	}
	lines := strings.Split(strings.TrimSpace(sdk), "\n")
	folder := lines[len(lines)-1]
	version := regexp.MustCompile(`mlx-metal-([0-9.]+)-`).FindStringSubmatch(filepath.Base(folder))
	if version == nil {
		return fmt.Errorf("%s does not name the version of its MLX", folder)
	}
	mlx, err := libmlx(folder, version[1])
	if err != nil {
		return err
	}
	if err := clear(r.out); err != nil {
		return err
	}
	return r.pack(r.artefacts(list, mlx))
}

// artefacts returns the artefacts of a release, whose programs are linked.
func (r *release) artefacts(list []*program, mlx []module) []artefact {
	find := func(name, goos, arch string) *program {
		return list[slices.IndexFunc(list, func(p *program) bool { return p.name == name && p.goos == goos && p.goarch == arch })]
	}
	agent, engine := find("agent", "darwin", "arm64"), find("engine", "darwin", "arm64")
	all := []artefact{{
		name: "metalfleet-agent_" + r.version + "_darwin_arm64.tar.gz", programs: []*program{agent, engine}, more: mlx,
		write: func(to, notice string) error { return r.packMac(to, notice, agent, engine) },
	}}
	for _, p := range list {
		if p.name == plugin {
			all = append(all, artefact{
				name: fmt.Sprintf("%s_%s_%s_%s.tar.gz", plugin, r.version, p.goos, p.goarch), programs: []*program{p},
				write: func(to, notice string) error { return r.packPlugin(to, notice, p) },
			})
		}
	}
	for _, name := range []string{"operator", "gateway"} {
		both := []*program{find(name, "linux", "amd64"), find(name, "linux", "arm64")}
		all = append(all, artefact{
			name: "metalfleet-" + name + "_" + r.version + "_linux.oci.tar", programs: both,
			write: func(to, notice string) error { return r.packImage(to, notice, name, both) },
		})
	}
	return all
}

// pack writes the artefacts, an SBOM of each, the chart, krew's manifest, their provenance,
// the sums of all, and signatures if there is a key.
func (r *release) pack(all []artefact) error {
	for _, a := range all {
		names, linked := "", [][]module{a.more}
		for _, p := range a.programs {
			linked = append(linked, p.modules)
			names = strings.TrimPrefix(names+", "+p.name+" for "+p.system(), ", ")
		}
		to := filepath.Join(r.out, a.name)
		if err := a.write(to, notice(names, union(linked...))); err != nil {
			return fmt.Errorf("%s: %w", a.name, err)
		}
		if err := r.writeBOM(to, a); err != nil {
			return fmt.Errorf("SBOM of %s: %w", a.name, err)
		}
	}
	if err := r.packChart(filepath.Join(r.out, chartFile(r.version))); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	if err := r.writeKrew(filepath.Join(r.out, krewFile(r.version))); err != nil {
		return fmt.Errorf("krew's manifest: %w", err)
	}
	if err := r.writeProvenance(); err != nil {
		return fmt.Errorf("provenance: %w", err)
	}
	if err := writeSums(r.out); err != nil {
		return err
	}
	return r.sign()
}

// macFiles maps names in the Mac's archive to files of the tree.
func macFiles() map[string]string {
	return map[string]string{
		"install.sh": "config/macos/install.sh", "dev.metalfleet.agent.plist": "config/macos/dev.metalfleet.agent.plist",
		"dev.metalfleet.wired-limit.plist": "config/macos/dev.metalfleet.wired-limit.plist",
		"selftest.sh":                      "hack/darwin/selftest.sh", "LICENSE": "LICENSE",
	}
}

// packMac writes the archive of a Mac: one folder, with sums that install.sh compares its
// files with.
func (r *release) packMac(to, notice string, agent, engine *program) error {
	entries := []entry{{name: "NOTICE", body: []byte(notice)}, {name: "VERSION", body: []byte(r.version + "\n")}}
	from := map[string]string{"agent": agent.path, "engine": engine.path}
	for _, name := range []string{"libmlx.dylib", "mlx.metallib"} {
		from[name] = filepath.Join(filepath.Dir(engine.path), name)
	}
	for name, path := range macFiles() {
		from[name] = filepath.Join(r.root, path)
	}
	for name, path := range from {
		body, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		entries = append(entries, entry{name: name, body: body, isRun: name == "agent" || name == "engine" || strings.HasSuffix(name, ".sh")})
	}
	var list strings.Builder
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	for _, e := range entries {
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(e.body), e.name)
	}
	entries = append(entries, entry{name: sums, body: []byte(list.String())})
	for i := range entries {
		entries[i].name = "metalfleet-agent_" + r.version + "/" + entries[i].name
	}
	return tarball(to, r.when, entries)
}

// packPlugin writes an archive of the plugin, flat, as krew's manifest reads it.
func (r *release) packPlugin(to, notice string, p *program) error {
	body, err := os.ReadFile(p.path)
	if err != nil {
		return err
	}
	licence, err := os.ReadFile(filepath.Join(r.root, "LICENSE"))
	if err != nil {
		return err
	}
	return tarball(to, r.when, []entry{{name: plugin, isRun: true, body: body}, {name: "LICENSE", body: licence}, {name: "NOTICE", body: []byte(notice)}})
}

// packImage writes the images of one program, for each processor, as one archive: the
// contents of the Dockerfile's image, and the licences.
func (r *release) packImage(to, notice, name string, list []*program) error {
	registry, err := r.registry()
	if err != nil {
		return err
	}
	notices := filepath.Join(r.bin, "NOTICE."+name)
	if err := os.WriteFile(notices, []byte(notice), 0o644); err != nil {
		return err
	}
	var images []image.Image
	for _, p := range list {
		if err := os.Chmod(p.path, 0o755); err != nil { // regardless of the umask
			return err
		}
		images = append(images, image.Image{
			Name: registry + "/" + name + ":" + r.version, Arch: p.goarch, Entrypoint: []string{"/" + name},
			Files: map[string]string{"/" + name: p.path, "/licenses/LICENSE": filepath.Join(r.root, "LICENSE"), "/licenses/NOTICE": notices},
		})
	}
	return image.WriteIndex(to, images)
}

// registry is the chart's default registry for images.
func (r *release) registry() (string, error) {
	values, err := os.ReadFile(filepath.Join(r.root, "charts", "metalfleet", "values.yaml"))
	if err != nil {
		return "", err
	}
	m := regexp.MustCompile(`(?m)^  registry: (\S+)$`).FindSubmatch(values)
	if m == nil {
		return "", fmt.Errorf("the chart's values name no image.registry")
	}
	return string(m[1]), nil
}

func chartFile(version string) string {
	return "metalfleet-" + strings.TrimPrefix(version, "v") + ".tgz"
}

// packChart writes the chart as `helm package` would, with the release's version, which is
// also the tag of its images.
func (r *release) packChart(to string) error {
	root := filepath.Join(r.root, "charts", "metalfleet")
	ignored, err := os.ReadFile(filepath.Join(root, ".helmignore"))
	if err != nil {
		return err
	}
	patterns := strings.Fields(string(ignored))
	var entries []entry
	err = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		for _, pattern := range patterns {
			if hit, err := path.Match(pattern, d.Name()); hit || err != nil {
				return err
			}
		}
		body, err := os.ReadFile(p)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(root, p)
		if err != nil {
			return err
		}
		if name == "Chart.yaml" {
			if body, err = versioned(body, r.version); err != nil {
				return err
			}
		}
		entries = append(entries, entry{name: "metalfleet/" + filepath.ToSlash(name), body: body})
		return nil
	})
	if err != nil {
		return err
	}
	return tarball(to, r.when, entries)
}

// versioned sets both versions of a Chart.yaml.
func versioned(chart []byte, version string) ([]byte, error) {
	for key, value := range map[string]string{"version": strings.TrimPrefix(version, "v"), "appVersion": version} {
		line := regexp.MustCompile(`(?m)^` + key + `: .*$`)
		if n := len(line.FindAll(chart, -1)); n != 1 {
			return nil, fmt.Errorf("there are %d lines %q in Chart.yaml, want one", n, key)
		}
		chart = line.ReplaceAll(chart, []byte(key+": "+value))
	}
	return chart, nil
}

func krewFile(version string) string { return plugin + "_" + version + "_krew.yaml" }

// writeKrew fills in the placeholders of krew's manifest from the files in the folder.
func (r *release) writeKrew(to string) error {
	text, err := os.ReadFile(filepath.Join(r.root, "config", "krew", "metalfleet.yaml"))
	if err != nil {
		return err
	}
	words := []string{"<VERSION>", r.version, "<HOMEPAGE>", r.home, "<ARCHIVES>", r.archives}
	archives, err := filepath.Glob(filepath.Join(r.out, plugin+"_*.tar.gz"))
	if err != nil {
		return err
	}
	for _, a := range archives {
		sum, err := digest(a)
		if err != nil {
			return err
		}
		system := strings.TrimSuffix(strings.TrimPrefix(filepath.Base(a), plugin+"_"+r.version+"_"), ".tar.gz")
		words = append(words, "<SHA256_"+strings.ToUpper(system)+">", sum)
	}
	_, manifest, _ := strings.Cut(string(text), "\napiVersion:") // the comment mentions the placeholders
	filled := "apiVersion:" + strings.NewReplacer(words...).Replace(manifest)
	if left := regexp.MustCompile(`<[A-Z0-9_]+>`).FindString(filled); left != "" {
		return fmt.Errorf("%s is left in it: no archive gives it", left)
	}
	return os.WriteFile(to, []byte(filled), 0o644)
}

// tarball writes a compressed archive: sorted, with owner 0, and the time of the commit.
func tarball(to string, when time.Time, entries []entry) error {
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.name, b.name) })
	var out bytes.Buffer
	z, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return err
	}
	w := tar.NewWriter(z)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Size: int64(len(e.body)), Mode: 0o644, ModTime: when, Format: tar.FormatUSTAR}
		if e.isRun {
			h.Mode = 0o755
		}
		if err := w.WriteHeader(h); err != nil {
			return err
		}
		if _, err := w.Write(e.body); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	if err := z.Close(); err != nil {
		return err
	}
	return os.WriteFile(to, out.Bytes(), 0o644)
}

func digest(file string) (string, error) {
	b, err := os.ReadFile(file)
	return fmt.Sprintf("%x", sha256.Sum256(b)), err
}

// writeSums writes the digest of each file of a folder.
func writeSums(dir string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var list strings.Builder
	for _, f := range files {
		if f.Name() == sums || strings.HasSuffix(f.Name(), upgrade.SignatureSuffix) {
			continue
		}
		sum, err := digest(filepath.Join(dir, f.Name()))
		if err != nil {
			return err
		}
		fmt.Fprintf(&list, "%s  %s\n", sum, f.Name())
	}
	return os.WriteFile(filepath.Join(dir, sums), []byte(list.String()), 0o644)
}
