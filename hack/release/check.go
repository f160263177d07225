package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"metalfleet.dev/metalfleet/agent/upgrade"
)

// faults lists what is wrong with a release, one line each.
type faults []string

func (f *faults) add(format string, args ...any) { *f = append(*f, fmt.Sprintf(format, args...)) }

// check reads a release as a user who downloads it would, and runs the programs for this
// machine.
func check(ctx context.Context, root, dir, helm, keys string) error {
	var f faults
	version := checkFolder(&f, dir)
	if version == "" {
		return fmt.Errorf("%s is no release:\n  %s", dir, strings.Join(f, "\n  "))
	}
	c := &checker{faults: &f, root: root, dir: dir, version: version}
	c.mac()
	for _, p := range programs() {
		if p.name == plugin {
			c.plugin(ctx, p.goos, p.goarch)
		}
	}
	for _, name := range []string{"operator", "gateway"} {
		c.image(ctx, name)
	}
	c.krew()
	c.chart(ctx, helm)
	c.provenance()
	if keys != "" {
		c.signatures(keys)
	}
	if len(f) > 0 {
		return fmt.Errorf("%s has faults:\n  %s", dir, strings.Join(f, "\n  "))
	}
	fmt.Printf("%s: %s is whole: %d files, their sums, SBOMs, provenance, programs, images, chart and krew's manifest\n", dir, version, len(files(version))+1)
	return nil
}

// files are the files of a release, except the sums.
func files(version string) []string {
	archives := []string{"metalfleet-agent_" + version + "_darwin_arm64.tar.gz", "metalfleet-operator_" + version + "_linux.oci.tar", "metalfleet-gateway_" + version + "_linux.oci.tar"}
	for _, p := range programs() {
		if p.name == plugin {
			archives = append(archives, fmt.Sprintf("%s_%s_%s_%s.tar.gz", plugin, version, p.goos, p.goarch))
		}
	}
	all := []string{chartFile(version), krewFile(version), provenanceFile(version)}
	for _, a := range archives {
		all = append(all, a, a+bomSuffix)
	}
	slices.Sort(all)
	return all
}

// checkFolder compares the folder with the list of a release and with its sums,
// and returns the version.
func checkFolder(f *faults, dir string) string {
	found, err := os.ReadDir(dir)
	if err != nil {
		f.add("%v", err)
		return ""
	}
	version := ""
	var names []string
	for _, e := range found {
		if m := regexp.MustCompile(`^metalfleet-agent_(v.*)_darwin_arm64\.tar\.gz$`).FindStringSubmatch(e.Name()); m != nil {
			version = m[1]
		}
		if e.Name() != sums && !strings.HasSuffix(e.Name(), upgrade.SignatureSuffix) {
			names = append(names, e.Name())
		}
	}
	want := files(version)
	for _, n := range names {
		if !slices.Contains(want, n) {
			f.add("%s does not belong to it", n)
		}
	}
	list, err := os.ReadFile(filepath.Join(dir, sums))
	if err != nil {
		f.add("%v", err)
	}
	var expected strings.Builder
	for _, n := range want {
		sum, err := digest(filepath.Join(dir, n))
		if err != nil {
			f.add("%s is missing", n)
		}
		fmt.Fprintf(&expected, "%s  %s\n", sum, n)
	}
	if string(list) != expected.String() {
		f.add("%s does not name each file with its digest", sums)
	}
	if !versions.MatchString(version) {
		return ""
	}
	return version
}

type checker struct {
	*faults
	root, dir, version string
}

// unpacked are the files of an archive and their modes.
type unpacked struct {
	body map[string][]byte
	mode map[string]int64
}

func unpack(file string, compressed bool) (unpacked, error) {
	u := unpacked{map[string][]byte{}, map[string]int64{}}
	b, err := os.ReadFile(file)
	if err != nil {
		return u, err
	}
	var in io.Reader = bytes.NewReader(b)
	if compressed {
		if in, err = gzip.NewReader(in); err != nil {
			return u, err
		}
	}
	return u, u.read(in)
}

func (u unpacked) read(in io.Reader) error {
	for r := tar.NewReader(in); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if h.Typeflag == tar.TypeDir {
			continue
		}
		if h.Typeflag != tar.TypeReg || u.body[h.Name] != nil {
			return fmt.Errorf("%s is no file, or there twice", h.Name)
		}
		body, err := io.ReadAll(r)
		if err != nil {
			return err
		}
		u.body[h.Name], u.mode[h.Name] = body, h.Mode
	}
}

// holds compares the names in an archive with the required ones.
func (c *checker) holds(file string, u unpacked, want ...string) {
	slices.Sort(want)
	if got := slices.Sorted(maps.Keys(u.body)); !slices.Equal(got, want) {
		c.add("%s holds %q, want %q", file, got, want)
	}
	for name, mode := range u.mode {
		isRun := slices.Contains([]string{"agent", "engine", plugin, "operator", "gateway"}, filepath.Base(name)) || strings.HasSuffix(name, ".sh")
		if isRun != (mode&0o111 != 0) || mode&0o022 != 0 {
			c.add("%s: %s has mode %o", file, name, mode)
		}
	}
}

// macNames are the files of a Mac's archive except its sums, sorted.
func macNames() []string {
	names := slices.Collect(maps.Keys(macFiles()))
	return slices.Sorted(slices.Values(append(names, "agent", "engine", "libmlx.dylib", "mlx.metallib", "NOTICE", "VERSION")))
}

// mac checks the archive of a Mac.
func (c *checker) mac() {
	file := "metalfleet-agent_" + c.version + "_darwin_arm64.tar.gz"
	u, err := unpack(filepath.Join(c.dir, file), true)
	if err != nil {
		c.add("%s: %v", file, err)
		return
	}
	folder := "metalfleet-agent_" + c.version + "/"
	var want []string
	var list strings.Builder
	for _, n := range macNames() {
		want = append(want, folder+n)
		fmt.Fprintf(&list, "%x  %s\n", sha256.Sum256(u.body[folder+n]), n)
	}
	c.holds(file, u, append(want, folder+sums)...)
	if string(u.body[folder+sums]) != list.String() {
		c.add("%s: its own %s does not fit its files", file, sums)
	}
	if string(u.body[folder+"VERSION"]) != c.version+"\n" {
		c.add("%s: VERSION says %q", file, u.body[folder+"VERSION"])
	}
	c.darwin(file+": agent", u.body[folder+"agent"], "arm64", false)
	c.darwin(file+": engine", u.body[folder+"engine"], "arm64", true)
	c.parts(file, u.body[folder+"NOTICE"], u.body[folder+"agent"], u.body[folder+"engine"])
	if !bytes.Contains(u.body[folder+"NOTICE"], []byte("  mlx ")) {
		c.add("%s: NOTICE does not name MLX", file)
	}
}

// parts compares the modules that are linked into programs with the notice and with the
// SBOM.
func (c *checker) parts(file string, notice []byte, programs ...[]byte) {
	bom, wrong := readBOM(filepath.Join(c.dir, file))
	for _, w := range wrong {
		c.add("%s: %s", file, w)
	}
	refs := map[string]bool{}
	if bom != nil && bom.Components != nil {
		for _, b := range *bom.Components {
			refs[b.PackageURL] = true
		}
	}
	for _, p := range programs {
		info, err := buildinfo.Read(bytes.NewReader(p))
		if err != nil {
			c.add("%s: what is linked: %v", file, err)
			continue
		}
		linked := []string{"std " + strings.TrimPrefix(info.GoVersion, "go")}
		for _, d := range info.Deps {
			linked = append(linked, d.Path+" "+d.Version)
		}
		for _, m := range linked {
			if !bytes.Contains(notice, []byte("  "+m+" (")) {
				c.add("%s: NOTICE does not name %s", file, m)
			}
			if !refs["pkg:golang/"+strings.Replace(m, " ", "@", 1)] {
				c.add("%s: its SBOM does not name %s", file, m)
			}
		}
	}
}

// plugin checks an archive of the plugin, and runs the one for this machine.
func (c *checker) plugin(ctx context.Context, goos, arch string) {
	file := fmt.Sprintf("%s_%s_%s_%s.tar.gz", plugin, c.version, goos, arch)
	u, err := unpack(filepath.Join(c.dir, file), true)
	if err != nil {
		c.add("%s: %v", file, err)
		return
	}
	c.holds(file, u, plugin, "LICENSE", "NOTICE")
	body := u.body[plugin]
	if goos == "darwin" {
		c.darwin(file, body, arch, false)
	} else {
		c.linux(file, body, arch)
	}
	c.parts(file, u.body["NOTICE"], body)
	if goos == runtime.GOOS && arch == runtime.GOARCH {
		c.runs(ctx, file, body, "version")
	}
}

// krew compares the manifest with the archives.
func (c *checker) krew() {
	file := krewFile(c.version)
	text, err := os.ReadFile(filepath.Join(c.dir, file))
	var manifest struct {
		Spec struct {
			Version   string
			Platforms []struct {
				URI, SHA256 string
				Selector    struct {
					MatchLabels struct{ OS, Arch string }
				}
			}
		}
	}
	if err = errors.Join(err, yaml.Unmarshal(text, &manifest)); err != nil {
		c.add("%s: %v", file, err)
		return
	}
	var systems []string
	for _, p := range manifest.Spec.Platforms {
		labels := p.Selector.MatchLabels
		systems = append(systems, labels.OS+"/"+labels.Arch)
		archive := fmt.Sprintf("%s_%s_%s_%s.tar.gz", plugin, c.version, labels.OS, labels.Arch)
		sum, err := digest(filepath.Join(c.dir, archive))
		if err != nil || p.SHA256 != sum || !strings.HasSuffix(p.URI, "/"+archive) {
			c.add("%s: %s with digest %s is not %s (%v)", file, p.URI, p.SHA256, archive, err)
		}
	}
	slices.Sort(systems)
	if want := []string{"darwin/amd64", "darwin/arm64", "linux/amd64", "linux/arm64"}; manifest.Spec.Version != c.version || !slices.Equal(systems, want) {
		c.add("%s: version %s for %q", file, manifest.Spec.Version, systems)
	}
}

// chart compares the packed chart with the tree's, and renders it with Helm: the images
// must be those of this release.
func (c *checker) chart(ctx context.Context, helm string) {
	file := filepath.Join(c.dir, chartFile(c.version))
	u, err := unpack(file, true)
	if err != nil {
		c.add("chart: %v", err)
		return
	}
	var chart struct{ Version, AppVersion string }
	err = yaml.Unmarshal(u.body["metalfleet/Chart.yaml"], &chart)
	if err != nil || chart.Version != strings.TrimPrefix(c.version, "v") || chart.AppVersion != c.version {
		c.add("chart: it is %s for %s (%v)", chart.Version, chart.AppVersion, err)
	}
	if u.body["metalfleet/values.yaml"] == nil || u.body["metalfleet/values.schema.json"] == nil {
		c.add("chart: it holds %q", slices.Sorted(maps.Keys(u.body)))
	}
	if helm == "" {
		return
	}
	if said, err := output(ctx, c.root, nil, helm, "lint", "--strict", file); err != nil {
		c.add("chart: %v\n%s", err, said)
	}
	rendered, err := output(ctx, c.root, nil, helm, "template", "metalfleet", file, "--namespace", "metalfleet-system", "--kube-version", "1.33.0")
	if err != nil {
		c.add("chart: %v", err)
	}
	images := regexp.MustCompile(`(?m)^\s+image: "?([^"\n]+)"?$`).FindAllStringSubmatch(rendered, -1)
	for _, i := range images {
		if !strings.HasSuffix(i[1], "/operator:"+c.version) && !strings.HasSuffix(i[1], "/gateway:"+c.version) {
			c.add("chart: it starts %s, which is not of this release", i[1])
		}
	}
	if len(images) < 2 {
		c.add("chart: Helm renders %d images", len(images))
	}
}
