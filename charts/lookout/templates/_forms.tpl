{{/* Checks the forms of values, with messages in words. `make chart` moved these checks out of the schema, because helm would print their regular expressions. */}}

{{/* Rejects values whose form differs from files/forms.json. */}}
{{- define "lookout.forms" -}}
{{- $values := .Values | toJson | fromJson }}
{{- range $form := .Files.Get "files/forms.json" | fromJsonArray }}
{{- range $form.paths }}
{{- include "lookout.form" (dict "form" $form "value" $values "path" "" "rest" .) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Checks one form at one path; call with (dict "form" entry "value" value "path" path of the value "rest" further names on the path). */}}
{{- define "lookout.form" -}}
{{- $form := .form }}
{{- $path := .path }}
{{- if not .rest }}
{{- if and (eq $form.kind "there") (kindIs "invalid" .value) }}{{ fail (printf "%s: it is %s" $path $form.words) }}{{ end }}
{{- if eq $form.kind "name" }}
{{- range $name, $_ := .value }}
{{- if not (regexMatch $form.form $name) }}{{ fail (printf "%s: the name %q is %s" $path $name $form.words) }}{{ end }}
{{- end }}
{{- else if and (eq $form.kind "text") (kindIs "string" .value) }}
{{- if not (regexMatch $form.form .value) }}
{{- /* Hides what looks like a password. */}}
{{- fail (printf "%s: %q is %s" $path (regexReplaceAll "//[^/@]*@" .value "//***@") $form.words) }}
{{- end }}
{{- else if and (eq $form.kind "above") (kindIs "float64" .value) }}
{{- if le .value $form.form }}{{ fail (printf "%s: %v is %s" $path .value $form.words) }}{{ end }}
{{- end }}
{{- else if eq (first .rest) "*" }}
{{- $rest := rest .rest }}
{{- if kindIs "map" .value }}
{{- range $name, $value := .value }}
{{- include "lookout.form" (dict "form" $form "value" $value "path" (printf "%s.%s" $path $name) "rest" $rest) }}
{{- end }}
{{- else if kindIs "slice" .value }}
{{- range $index, $value := .value }}
{{- include "lookout.form" (dict "form" $form "value" $value "path" (printf "%s[%d]" $path $index) "rest" $rest) }}
{{- end }}
{{- end }}
{{- else if and (kindIs "map" .value) (hasKey .value (first .rest)) }}
{{- $path = ternary (first .rest) (printf "%s.%s" $path (first .rest)) (eq $path "") }}
{{- include "lookout.form" (dict "form" $form "value" (get .value (first .rest)) "path" $path "rest" (rest .rest)) }}
{{- else if eq $form.kind "there" }}
{{- fail (printf "%s: it is %s" (trimPrefix "." (printf "%s.%s" $path (join "." .rest))) $form.words) }}
{{- end }}
{{- end }}
