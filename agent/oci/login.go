package oci

import (
	"cmp"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"

	"metalfleet.dev/metalfleet/agent/download"
	"metalfleet.dev/metalfleet/api/v1alpha1"
)

// Login is a user's name and password at a registry. An empty one is none, for
// what everybody may pull. It prints as no more than whether there is one.
type Login struct{ name, password string }

// ReadLogin parses the Mac's Secret: NAME:PASSWORD after the prefix, each part
// escaped as in a query.
func ReadLogin(b download.Bearer) (Login, error) {
	if b == "" {
		return Login{}, nil
	}
	rest, ok := strings.CutPrefix(string(b), v1alpha1.CredentialOCI)
	name, password, two := strings.Cut(rest, ":")
	n, nameErr := url.QueryUnescape(name)
	p, passErr := url.QueryUnescape(password)
	if !ok || !two || nameErr != nil || passErr != nil || n == "" || p == "" || strings.Contains(password, ":") {
		return Login{}, &download.Error{Reason: v1alpha1.ReasonTokenRefused, Message: "the Secret of model.secretRef contains no registry login; use a Secret of type kubernetes.io/dockerconfigjson"}
	}
	return Login{n, p}, nil
}

func (l Login) none() bool { return l == Login{} }

// String hides the login from every log and error.
func (l Login) String() string {
	if l.none() {
		return "no login"
	}
	return "a login"
}

// GoString hides it too.
func (l Login) GoString() string { return l.String() }

func (l Login) basic() string {
	return "Basic " + base64.StdEncoding.EncodeToString([]byte(l.name+":"+l.password))
}

// question is what a token was given for.
type question struct {
	registry, repository string
	login                Login
}

type token struct {
	header string    // empty where the registry wants none
	until  time.Time // by the clock on the wall: the other one stands still while a Mac sleeps
}

// good returns when a token ends that is good for a while from now.
func good(d time.Duration) time.Time { return time.Now().Round(0).Add(d) }

// A token without a word on how long it is good is good for a minute; one is
// not used at its very end.
const (
	tokenTime = time.Minute
	tokenLate = 10 * time.Second
	maxToken  = 64 << 10
	maxTokens = 64
)

// Header adds what the registry lets this login in with, which is asked for as
// the registry says and remembered as long as it is good.
func (c *Client) Header(ctx context.Context, s Source, login Login, header http.Header) (http.Header, error) {
	q := question{s.Registry, s.Repository, login}
	c.mu.Lock()
	t, known := c.tokens[q]
	c.mu.Unlock()
	if !known || time.Now().After(t.until) {
		var err error
		if t, err = c.askInTime(ctx, s, login); err != nil {
			return nil, err
		}
		c.mu.Lock()
		if c.tokens == nil || len(c.tokens) >= maxTokens {
			c.tokens = map[question]token{}
		}
		c.tokens[q] = t
		c.mu.Unlock()
	}
	out := header.Clone()
	if out == nil {
		out = http.Header{}
	}
	out.Del(authorization)
	if t.header != "" {
		out.Set(authorization, t.header)
	}
	return out, nil
}

const authorization = "Authorization"

// Get requests a URL of the repository with the header that Header returned. A token that the
// registry takes no longer is asked for again, once.
func (c *Client) Get(ctx context.Context, s Source, login Login, url string, header http.Header) (*http.Response, error) {
	resp, err := c.Client.Get(ctx, url, header)
	var e *download.Error
	if !errors.As(err, &e) || e.Status != http.StatusUnauthorized || e.Elsewhere || !strings.HasPrefix(header.Get(authorization), "Bearer ") {
		return resp, err
	}
	q := question{s.Registry, s.Repository, login}
	c.mu.Lock()
	if c.tokens[q].header == header.Get(authorization) {
		delete(c.tokens, q)
	}
	c.mu.Unlock()
	if header, err = c.Header(ctx, s, login, header); err != nil {
		return nil, err
	}
	return c.Client.Get(ctx, url, header)
}

// askInTime is ask within LoginTime.
func (c *Client) askInTime(ctx context.Context, s Source, login Login) (token, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, cmp.Or(c.LoginTime, time.Minute), &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true,
		Message: "the login at registry " + s.Registry + " takes too long; retrying"})
	defer cancel()
	return c.ask(ctx, s, login)
}

// ask finds out how the registry authenticates clients.
func (c *Client) ask(ctx context.Context, s Source, login Login) (token, error) {
	resp, err := c.Client.Get(ctx, "https://"+s.host()+"/v2/", nil)
	given := token{until: good(tokenTime)}
	var e *download.Error
	switch {
	case err == nil:
		return given, resp.Body.Close()
	case !errors.As(err, &e) || e.Status != http.StatusUnauthorized || e.Elsewhere:
		return token{}, Explain(err, s, login)
	}
	scheme, words := challenge(e.Challenge)
	switch {
	case scheme == "basic" && login.none():
		return token{}, Explain(err, s, login)
	case scheme == "basic":
		given.header = login.basic()
		return given, nil
	case scheme != "bearer" || words["realm"] == "":
		return token{}, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: "registry " + s.Registry + " does not offer a supported login; check its name"}
	}
	return c.fetch(ctx, s, login, words)
}

// fetch asks the registry's token server.
func (c *Client) fetch(ctx context.Context, s Source, login Login, words map[string]string) (token, error) {
	u, err := url.Parse(words["realm"])
	if err != nil {
		return token{}, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Message: "registry " + s.Registry + " returned an invalid URL for its token server"}
	}
	v := u.Query()
	v.Set("scope", "repository:"+s.Repository+":pull")
	if words["service"] != "" {
		v.Set("service", words["service"])
	}
	u.RawQuery = v.Encode()
	header := http.Header{}
	if !login.none() {
		header.Set(authorization, login.basic())
	}
	resp, err := c.Client.Get(ctx, u.String(), header)
	if err != nil {
		return token{}, Explain(err, s, login)
	}
	defer resp.Body.Close()
	raw, err := io.ReadAll(io.LimitReader(resp.Body, maxToken))
	if err != nil {
		return token{}, err
	}
	var got struct {
		Token       string `json:"token"`
		AccessToken string `json:"access_token"`
		ExpiresIn   int64  `json:"expires_in"`
	}
	_ = json.Unmarshal(raw, &got) // what is no JSON has no token
	if got.Token == "" {
		got.Token = got.AccessToken
	}
	if !tokenText.MatchString(got.Token) {
		return token{}, &download.Error{Reason: v1alpha1.ReasonSourceUnreachable, Transient: true, Message: "the token server of registry " + s.Registry + " returned no token; retrying"}
	}
	lasts := max(tokenTime, time.Duration(min(got.ExpiresIn, 3600))*time.Second)
	return token{header: "Bearer " + got.Token, until: good(lasts - tokenLate)}, nil
}

var (
	tokenText = regexp.MustCompile(`^[!-~]+$`)
	word      = regexp.MustCompile(`([A-Za-z_]+)="([^"]*)"`)
)

// challenge reads a WWW-Authenticate header.
func challenge(header string) (scheme string, words map[string]string) {
	scheme, rest, _ := strings.Cut(header, " ")
	words = map[string]string{}
	for _, m := range word.FindAllStringSubmatch(rest, 32) {
		words[strings.ToLower(m[1])] = m[2]
	}
	return strings.ToLower(scheme), words
}
