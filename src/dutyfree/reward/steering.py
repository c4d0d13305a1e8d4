"""Names that are not taken over from an agent unless the allow-list spells them out, and names that are never taken.

A name is here if a test runner, a build tool or an interpreter reads the file unasked, or loads it in place of a source
file. Patterns are those of `AllowList`: `*` within one name.
"""

_PYTHON = """
conftest.py pytest.ini .pytest.ini pytest.toml .pytest.toml pytest.py _pytest tox.ini tox.toml setup.cfg setup.py pyproject.toml
noxfile.py sitecustomize.py usercustomize.py *.pth *.egg-link *.egg-info *.dist-info site-packages dist-packages __pypackages__
pyvenv.cfg .venv venv .coveragerc .pdbrc uv.toml .python-version Pipfile Pipfile.lock poetry.lock uv.lock pdm.toml hatch.toml pixi.toml
"""
_JAVASCRIPT = """
package.json package-lock.json npm-shrinkwrap.json yarn.lock pnpm-lock.yaml pnpm-workspace.yaml .pnpmfile.* .pnp.* .npmrc .yarnrc
.yarnrc.yml .yarn node_modules __mocks__ jest.config.* jest.setup.* jest-preset.* vitest.* vite.config.* .mocharc* mocha.opts karma.conf.*
playwright.config.* playwright-ct.config.* cypress.config.* cypress.json ava.config.* jasmine.json testem.* wdio.conf.* .taprc .nycrc* nyc.config.* .c8rc*
.babelrc* babel.config.* .swcrc tsconfig*.json jsconfig.json webpack.config.* rollup.config.* esbuild.config.* gulpfile.* Gruntfile.*
.eslintrc* eslint.config.* bunfig.toml deno.json deno.jsonc import_map.json turbo.json nx.json lerna.json .nvmrc .node-version
"""
_BUILD = """
Makefile makefile GNUmakefile BSDmakefile Makefile.* *.mk configure configure.ac CMakeLists.txt *.cmake CMakePresets.json
CMakeUserPresets.json meson.build meson.options meson_options.txt build.ninja SConstruct SConscript wscript Justfile justfile .justfile
Taskfile.y*ml taskfile.y*ml BUILD BUILD.bazel WORKSPACE WORKSPACE.bazel MODULE.bazel .bazelrc xmake.lua premake*.lua
"""
_COMPILED = """
Cargo.toml Cargo.lock .cargo build.rs rust-toolchain rust-toolchain.toml go.mod go.sum go.work go.work.sum vendor
pom.xml .mvn mvnw *.gradle *.gradle.kts gradle.properties gradlew gradle-wrapper.* libs.versions.toml buildSrc build.xml *.sbt build.sc
testng*.xml junit-platform.properties project.clj deps.edn *.csproj *.fsproj *.vbproj *.sln *.slnx *.props *.targets global.json
NuGet.config nuget.config *.runsettings xunit.runner.json *.cabal cabal.project* stack.yaml Setup.hs Package.swift Package.resolved
dune dune-project dune-workspace build.zig build.zig.zon *.nimble nim.cfg
"""
_OTHERS = """
Rakefile rakefile *.rake .rspec .rspec-local Gemfile Gemfile.lock gems.rb gems.locked *.gemspec .bundle .simplecov .irbrc spec_helper.rb
rails_helper.rb test_helper.rb .ruby-version phpunit.xml* phpunit.dist.xml composer.json composer.lock .user.ini php.ini Pest.php
mix.exs mix.lock rebar.config test_helper.exs .iex.exs pubspec.yaml pubspec.lock dart_test.yaml .busted Makefile.PL Build.PL .proverc
cpanfile .Rprofile .Renviron Project.toml Manifest.toml
"""
_PLACES = """
.git .gitattributes .gitmodules .hg .svn .jj .env .envrc .tool-versions mise.toml .mise.toml .config .bash* .profile .zsh* .gdbinit .lldbinit
"""
_PRODUCTS = """
*.so *.so.* *.pyd *.dll *.dylib *.o *.lo *.a *.class *.jar *.node *.beam *.gch *.pch *.rlib *.rmeta
"""

STEERING: tuple[str, ...] = tuple(
    f"{_PYTHON} {_JAVASCRIPT} {_BUILD} {_COMPILED} {_OTHERS} {_PLACES} {_PRODUCTS}".split()
)
"""Names that say how tests are found, started or judged, and products that stand in for their source."""

CACHES: tuple[str, ...] = ("__pycache__", "*.pyc", "*.pyo")
"""Bytecode: an interpreter may run it instead of the source beside it, whatever the source says. Never taken."""

_SCRIPTS = frozenset({".js", ".ts", ".mjs", ".cjs", ".mts", ".cts", ".jsx", ".tsx"})

LOADED_INSTEAD: tuple[tuple[frozenset[str], frozenset[str]], ...] = (
    (frozenset({".py"}), frozenset({""})),
    (_SCRIPTS, _SCRIPTS | {""}),
)
"""Suffixes of a hidden file, and those under which the same name beside it may be loaded in its place (none: a directory)."""
