package inspect

import (
	"net/url"
	"strings"
	"testing"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/agent/s3"
	"metalfleet.dev/metalfleet/agent/s3/s3test"
	"metalfleet.dev/metalfleet/api/model"
	"metalfleet.dev/metalfleet/api/v1alpha1"
	"metalfleet.dev/metalfleet/metal/weights"
)

// inBucket makes a resolver, and a private bucket that it reaches.
func inBucket(t *testing.T, objects map[string]s3test.Object) (*Resolver, *s3test.Server, string) {
	t.Helper()
	stand := &s3test.Server{PageSize: 4}
	stand.Put("models", s3test.Bucket{Objects: objects, Region: "us-east-1", ID: "AKIA", Secret: "secret"})
	r, srv := remote(t, stand.ServeHTTP)
	r.Token = func(ref string) (download.Bearer, bool) { return "s3:AKIA:secret", ref == "ref" }
	return r, stand, "?endpoint=" + url.QueryEscape(srv.URL)
}

func TestResolveAFolderOfABucket(t *testing.T) {
	dir, files := published(t, true)
	objects := map[string]s3test.Object{"other/config.json": {Content: []byte("{}")}}
	sums := ""
	for name, f := range files {
		objects["tiny/"+name] = s3test.Object{Content: f.Content, Whole: name == "model-00001-of-00002.safetensors"}
		if !objects["tiny/"+name].Whole {
			sums += digest(f.Content) + "  " + name + "\n"
		}
	}
	objects["tiny/"+s3.SumsFile] = s3test.Object{Content: []byte(sums)}
	r, stand, query := inBucket(t, objects)
	rec, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "s3://models/tiny" + query, TokenRef: "ref"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := weights.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if want, err := f.Facts(); err != nil || rec.Facts != want || rec.Validate() != nil {
		t.Errorf("facts are %+v, of the folder itself %+v (%v)", rec.Facts, want, err)
	}
	if rec.Format != model.FormatSafetensors || rec.Commit != "" || rec.Digest != model.DigestOf(rec.Files) {
		t.Errorf("%+v", rec)
	}
	for _, f := range rec.Files {
		if c := files[f.Path].Content; f.Bytes != int64(len(c)) || f.SHA256 != digest(c) {
			t.Errorf("%+v, want %d bytes with %s", f, len(c), digest(c))
		}
	}
	for _, request := range stand.Requests() {
		if strings.Contains(request, "README") || strings.Contains(request, "pytorch") || strings.Contains(request, "other/") {
			t.Errorf("it was fetched: %s", request)
		}
	}
}

func TestWhatABucketHoldsIsNotGuessed(t *testing.T) {
	_, files := published(t, false)
	good := func() map[string]s3test.Object {
		out := map[string]s3test.Object{}
		for name, f := range files {
			out["tiny/"+name] = s3test.Object{Content: f.Content, Whole: true}
		}
		return out
	}
	for name, test := range map[string]struct {
		change func(map[string]s3test.Object)
		order  v1alpha1.Inspection
		reason string
	}{
		"good": {reason: ""},
		"no digest": {change: func(o map[string]s3test.Object) {
			o["tiny/model.safetensors"] = s3test.Object{Content: files["model.safetensors"].Content}
		}, reason: v1alpha1.ReasonInvalidModel},
		"a wrong small file": {change: func(o map[string]s3test.Object) {
			o["tiny/"+s3.SumsFile] = s3test.Object{Content: []byte(strings.Repeat("0", 64) + "  config.json\n")}
		}, reason: v1alpha1.ReasonDigestMismatch},
		"no model":            {order: v1alpha1.Inspection{Source: "/none"}, reason: v1alpha1.ReasonInvalidModel},
		"a digest of one":     {order: v1alpha1.Inspection{SHA256: strings.Repeat("0", 64)}, reason: v1alpha1.ReasonSourceForbidden},
		"a token not here":    {order: v1alpha1.Inspection{TokenRef: "late"}, reason: v1alpha1.ReasonTokenMissing},
		"an unknown one":      {order: v1alpha1.Inspection{TokenRef: "none"}, reason: v1alpha1.ReasonTokenRefused},
		"a pattern of no one": {order: v1alpha1.Inspection{Files: []string{"*.gguf"}}, reason: v1alpha1.ReasonInvalidModel},
	} {
		t.Run(name, func(t *testing.T) {
			objects := good()
			if test.change != nil {
				test.change(objects)
			}
			r, _, query := inBucket(t, objects)
			order := test.order
			if order.Source == "" {
				order.Source = "/tiny"
			}
			order.Source = "s3://models" + order.Source + query
			switch order.TokenRef {
			case "":
				order.TokenRef = "ref"
			case "none":
				order.TokenRef = ""
			}
			_, err := r.Resolve(t.Context(), order)
			if download.Reason(err, "") != test.reason || (err == nil) != (test.reason == "") {
				t.Errorf("%v", err)
			}
		})
	}
}

// TestAttackAnAccessKeyForAHub: what is no token of a hub is not sent to one.
func TestAttackAnAccessKeyForAHub(t *testing.T) {
	r, stand, _ := inBucket(t, nil)
	_, err := r.Resolve(t.Context(), v1alpha1.Inspection{Source: "hf://org/tiny", TokenRef: "ref"})
	if download.Reason(err, "") != v1alpha1.ReasonTokenRefused || len(stand.Requests()) != 0 {
		t.Errorf("%v, %q", err, stand.Requests())
	}
}
