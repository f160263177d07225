package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	cdx "github.com/CycloneDX/cyclonedx-go"
	"github.com/google/uuid"
)

const bomSuffix = ".cdx.json"

// writeBOM writes the SBOM of an artefact next to it.
func (r *release) writeBOM(file string, a artefact) error {
	body, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	b, err := r.bom(a, body)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := cdx.NewBOMEncoder(&out, cdx.BOMFileFormatJSON).SetPretty(true).EncodeVersion(b, cdx.SpecVersion1_6); err != nil {
		return err
	}
	return os.WriteFile(file+bomSuffix, out.Bytes(), 0o644)
}

// bom lists an artefact's parts: its programs, the modules of each, and its other contents,
// each with version and licence.
func (r *release) bom(a artefact, body []byte) (*cdx.BOM, error) {
	b := cdx.NewBOM()
	b.SerialNumber = "urn:uuid:" + uuid.NewSHA1(uuid.NameSpaceURL, append([]byte(a.name), body...)).String()
	top := cdx.Component{
		BOMRef: "artefact", Type: cdx.ComponentTypeApplication, Name: a.name, Version: r.version,
		Licenses: licences([]string{"Apache-2.0"}), Hashes: hashes(body),
	}
	b.Metadata = &cdx.Metadata{
		Timestamp: r.when.Format(time.RFC3339), Component: &top,
		Properties: &[]cdx.Property{{Name: "metalfleet:commit", Value: r.commit}},
	}
	components := map[string]cdx.Component{}
	needs := map[string][]string{}
	for _, p := range a.programs {
		body, err := os.ReadFile(p.path)
		if err != nil {
			return nil, err
		}
		ref := fmt.Sprintf("program:%s_%s_%s", p.name, p.goos, p.goarch)
		components[ref] = cdx.Component{
			BOMRef: ref, Type: cdx.ComponentTypeApplication, Name: p.name, Version: r.version, Licenses: licences([]string{"Apache-2.0"}), Hashes: hashes(body),
			Properties: &[]cdx.Property{{Name: "metalfleet:system", Value: p.system()}},
		}
		needs[top.BOMRef] = append(needs[top.BOMRef], ref)
		needs[ref] = addModules(components, p.modules)
		if p.mlx {
			needs[ref] = append(needs[ref], addParts(components, a.more)...)
		}
	}
	var list []cdx.Component
	for _, c := range components {
		list = append(list, c)
		if _, ok := needs[c.BOMRef]; !ok {
			needs[c.BOMRef] = nil
		}
	}
	slices.SortFunc(list, func(a, b cdx.Component) int { return bytes.Compare([]byte(a.BOMRef), []byte(b.BOMRef)) })
	var edges []cdx.Dependency
	for ref, on := range needs {
		slices.Sort(on)
		edges = append(edges, cdx.Dependency{Ref: ref, Dependencies: &on})
	}
	slices.SortFunc(edges, func(a, b cdx.Dependency) int { return bytes.Compare([]byte(a.Ref), []byte(b.Ref)) })
	b.Components, b.Dependencies = &list, &edges
	return b, nil
}

// addModules adds Go modules and returns their references.
func addModules(to map[string]cdx.Component, list []module) (refs []string) {
	for _, m := range list {
		purl := "pkg:golang/" + m.path + "@" + m.version
		c := component(purl, m)
		c.PackageURL = purl
		to[purl] = c
		refs = append(refs, purl)
	}
	return refs
}

// addParts adds parts that are in no package index.
func addParts(to map[string]cdx.Component, list []module) (refs []string) {
	for _, m := range list {
		ref := "part:" + m.path
		to[ref] = component(ref, m)
		refs = append(refs, ref)
	}
	return refs
}

func component(ref string, m module) cdx.Component {
	return cdx.Component{BOMRef: ref, Type: cdx.ComponentTypeLibrary, Name: m.path, Version: m.version, Licenses: licences(m.licences)}
}

func licences(names []string) *cdx.Licenses {
	var list cdx.Licenses
	for _, n := range names {
		list = append(list, cdx.LicenseChoice{License: &cdx.License{ID: n}})
	}
	return &list
}

func hashes(body []byte) *[]cdx.Hash {
	return &[]cdx.Hash{{Algorithm: cdx.HashAlgoSHA256, Value: fmt.Sprintf("%x", sha256.Sum256(body))}}
}

// readBOM reads an SBOM and lists its differences to the artefact.
func readBOM(file string) (*cdx.BOM, []string) {
	text, err := os.ReadFile(file + bomSuffix)
	if err != nil {
		return nil, []string{"it has no SBOM: " + err.Error()}
	}
	var b cdx.BOM
	if err := cdx.NewBOMDecoder(bytes.NewReader(text), cdx.BOMFileFormatJSON).Decode(&b); err != nil {
		return nil, []string{"its SBOM cannot be read: " + err.Error()}
	}
	if b.BOMFormat != "CycloneDX" || b.SpecVersion != cdx.SpecVersion1_6 || b.Metadata == nil || b.Metadata.Component == nil || b.Components == nil || b.Dependencies == nil {
		return nil, []string{"its SBOM lacks what CycloneDX 1.6 asks for"}
	}
	sum, err := digest(file)
	if err != nil {
		return nil, []string{err.Error()}
	}
	var faults []string
	top := b.Metadata.Component
	if top.Name != filepath.Base(file) || top.Hashes == nil || (*top.Hashes)[0].Value != sum {
		faults = append(faults, "its SBOM is that of another file")
	}
	refs := map[string]bool{top.BOMRef: true}
	for _, c := range *b.Components {
		if refs[c.BOMRef] {
			faults = append(faults, "its SBOM names "+c.BOMRef+" twice")
		}
		refs[c.BOMRef] = true
		if c.Version == "" || c.Licenses == nil || len(*c.Licenses) == 0 {
			faults = append(faults, "its SBOM says no version or licence of "+c.Name)
		}
	}
	for _, d := range *b.Dependencies {
		ends := []string{d.Ref}
		if d.Dependencies != nil {
			ends = append(ends, *d.Dependencies...)
		}
		for _, on := range ends {
			if !refs[on] {
				faults = append(faults, "its SBOM lacks "+on+", which something depends on")
			}
		}
	}
	return &b, faults
}
