package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"debug/buildinfo"
	"debug/elf"
	"debug/macho"
	"encoding/json"
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

// oldest macOS that install.sh accepts; a test of config/macos compares it with MLX's
// wheel, and one here with install.sh.
const oldest = 14

// machO is the part that a Mac's loader reads first.
type machO struct {
	cpu               macho.Cpu
	minimum           uint32 // macOS, as 0xMMMMmmpp
	libraries, rpaths []string
}

func readMachO(body []byte) (machO, error) {
	f, err := macho.NewFile(bytes.NewReader(body))
	if err != nil {
		return machO{}, err
	}
	m := machO{cpu: f.Cpu}
	for _, l := range f.Loads {
		switch l := l.(type) {
		case *macho.Dylib:
			m.libraries = append(m.libraries, l.Name)
		case *macho.Rpath:
			m.rpaths = append(m.rpaths, l.Path)
		default:
			const buildVersion = 0x32 // LC_BUILD_VERSION
			if b := l.Raw(); len(b) >= 16 && f.ByteOrder.Uint32(b) == buildVersion {
				m.minimum = f.ByteOrder.Uint32(b[12:])
			}
		}
	}
	return m, nil
}

// darwin checks a program for Macs. Only the engine loads a library that macOS lacks:
// libmlx, from the same folder.
func (c *checker) darwin(what string, body []byte, arch string, isEngine bool) {
	m, err := readMachO(body)
	if err != nil {
		c.add("%s: %v", what, err)
		return
	}
	if want := map[string]macho.Cpu{"arm64": macho.CpuArm64, "amd64": macho.CpuAmd64}[arch]; m.cpu != want {
		c.add("%s is for %s, want %s", what, m.cpu, want)
	}
	if m.minimum == 0 || m.minimum > oldest<<16 {
		c.add("%s asks for macOS %d.%d, install.sh for %d", what, m.minimum>>16, m.minimum>>8&0xff, oldest)
	}
	hasMLX := slices.Contains(m.libraries, "@rpath/libmlx.dylib")
	if hasMLX != isEngine || isEngine && !slices.Contains(m.rpaths, "@executable_path") {
		c.add("%s: libraries %q, run paths %q: it would not find libmlx in its own folder, or needs none", what, m.libraries, m.rpaths)
	}
	for _, l := range m.libraries {
		if l != "@rpath/libmlx.dylib" && !strings.HasPrefix(l, "/usr/lib/") && !strings.HasPrefix(l, "/System/") {
			c.add("%s loads %s, which macOS does not have", what, l)
		}
	}
	c.says(what, body)
}

// says looks for the version that the linker was given; a program for this machine is also
// run with --version.
func (c *checker) says(what string, body []byte) {
	if !bytes.Contains(body, []byte(c.version)) {
		c.add("%s does not say %s", what, c.version)
	}
}

// linux checks a program for Linux: no loader, no libraries.
func (c *checker) linux(what string, body []byte, arch string) {
	f, err := elf.NewFile(bytes.NewReader(body))
	if err != nil {
		c.add("%s: %v", what, err)
		return
	}
	if want := map[string]elf.Machine{"arm64": elf.EM_AARCH64, "amd64": elf.EM_X86_64}[arch]; f.Machine != want {
		c.add("%s is for %s, want %s", what, f.Machine, want)
	}
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
			c.add("%s is not static", what)
		}
	}
	c.says(what, body)
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

// runs starts a program here and requires the version in its output.
func (c *checker) runs(ctx context.Context, what string, body []byte, args ...string) {
	dir, err := os.MkdirTemp("", "release")
	if err != nil {
		c.add("%s: %v", what, err)
		return
	}
	defer os.RemoveAll(dir)
	file := filepath.Join(dir, "tried")
	if err := os.WriteFile(file, body, 0o755); err != nil {
		c.add("%s: %v", what, err)
		return
	}
	said, err := output(ctx, c.root, nil, file, args...)
	if err != nil || !slices.Contains(strings.Fields(said), c.version) {
		c.add("%s: asked for its version it says %q (%v), want %s", what, said, err, c.version)
	}
}

// ociIndex, ociManifest and ociConfig are the parts of images that are read.
type ociIndex struct {
	Manifests []struct {
		MediaType, Digest string
		Platform          struct{ OS, Architecture string }
		Annotations       map[string]string
	}
}

type ociManifest struct {
	Config struct{ Digest string }
	Layers []struct{ Digest string }
}

type ociConfig struct {
	OS, Architecture string
	Config           struct {
		Entrypoint []string
		User       string
	}
}

// image checks the images of one program: both processors, and each against the Dockerfile.
func (c *checker) image(ctx context.Context, name string) {
	file := "metalfleet-" + name + "_" + c.version + "_linux.oci.tar"
	u, err := unpack(filepath.Join(c.dir, file), false)
	if err != nil {
		c.add("%s: %v", file, err)
		return
	}
	blob := func(digest string, into any) []byte {
		b := u.body["blobs/"+strings.Replace(digest, ":", "/", 1)]
		if digest != fmt.Sprintf("sha256:%x", sha256.Sum256(b)) {
			c.add("%s: blob %s is damaged or missing", file, digest)
		} else if into != nil {
			if err := json.Unmarshal(b, into); err != nil {
				c.add("%s: blob %s: %v", file, digest, err)
			}
		}
		return b
	}
	var top, index ociIndex
	if err := json.Unmarshal(u.body["index.json"], &top); err != nil || len(top.Manifests) != 1 {
		c.add("%s: index.json: %v", file, err)
		return
	}
	if !strings.HasSuffix(top.Manifests[0].Annotations["io.containerd.image.name"], "/"+name+":"+c.version) {
		c.add("%s: it is named %q", file, top.Manifests[0].Annotations)
	}
	blob(top.Manifests[0].Digest, &index)
	var arches []string
	for _, m := range index.Manifests {
		arches = append(arches, m.Platform.OS+"/"+m.Platform.Architecture)
		var manifest ociManifest
		var config ociConfig
		blob(m.Digest, &manifest)
		blob(manifest.Config.Digest, &config)
		if len(manifest.Layers) != 1 || config.OS != m.Platform.OS || config.Architecture != m.Platform.Architecture {
			c.add("%s: %s is %s/%s in %d layers", file, m.Platform, config.OS, config.Architecture, len(manifest.Layers))
			continue
		}
		c.layer(ctx, file, name, config, blob(manifest.Layers[0].Digest, nil))
	}
	if !slices.Equal(arches, []string{"linux/amd64", "linux/arm64"}) {
		c.add("%s: it is for %q", file, arches)
	}
}

// layer checks the contents and the entry point of one image.
func (c *checker) layer(ctx context.Context, file, name string, config ociConfig, layer []byte) {
	what := file + " for " + config.Architecture
	u := unpacked{map[string][]byte{}, map[string]int64{}}
	if err := u.read(bytes.NewReader(layer)); err != nil {
		c.add("%s: %v", what, err)
	}
	c.holds(what, u, name, "licenses/LICENSE", "licenses/NOTICE")
	user, entrypoint, err := dockerfile(filepath.Join(c.root, "Dockerfile"), name)
	if err != nil || config.Config.User != user || !slices.Equal(config.Config.Entrypoint, entrypoint) {
		c.add("%s starts %q as %s; the Dockerfile says %q as %s (%v)", what, config.Config.Entrypoint, config.Config.User, entrypoint, user, err)
	}
	c.linux(what, u.body[name], config.Architecture)
	if runtime.GOOS == "linux" && config.Architecture == runtime.GOARCH {
		c.runs(ctx, what, u.body[name], "--version")
	}
	c.parts(file, u.body["licenses/NOTICE"], u.body[name])
}

// dockerfile parses one stage of the Dockerfile.
func dockerfile(path, stage string) (user string, entrypoint []string, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", nil, err
	}
	_, rest, _ := strings.Cut(string(b), "\nFROM scratch AS "+stage+"\n")
	rest, _, _ = strings.Cut(rest, "\nFROM ")
	for line := range strings.Lines(rest) {
		word, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch word {
		case "USER":
			user = value
		case "ENTRYPOINT":
			err = json.Unmarshal([]byte(value), &entrypoint)
		}
	}
	return user, entrypoint, err
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
