// Loaded by the WebUI into its page. Only what Python cannot do: what a page draws as HTML sends a command through the
// page's hidden text box and button (ti_fix_PAGE_send), and a page that comes into sight says so (ti_fix_PAGE_opened),
// so that it finds a running job again. Ids of elements begin with "ti_fix_".
(function () {
    "use strict";

    let lastCommand = "";

    const root = () => (typeof gradioApp === "function" ? gradioApp() : document);
    const find = (id) => root().querySelector("#ti_fix_" + id);

    /** The name of the page that an element stands in: "files", "train" … */
    function pageOf(element) {
        const page = element.closest('[id^="ti_fix_"][id$="_page"]');
        return page ? page.id.slice("ti_fix_".length, -"_page".length) : "";
    }

    function press(id) {
        const found = find(id);
        const button = found && (found.tagName === "BUTTON" ? found : found.querySelector("button"));
        if (button) button.click();
    }

    function send(page, command) {
        lastCommand = command;
        window.tiFixCommand = command;
        if (page === "files" && !command.startsWith("open:")) find("files_table").querySelector(".rows")?.scrollTo(0, 0);
        press(page + "_send");
    }

    /** Marks the chosen row; the list itself is not drawn anew, so it keeps its scroll position. */
    function choose(command) {
        for (const row of find("files_table").querySelectorAll("tr[data-ti-fix]")) {
            const chosen = row.dataset.tiFix === command;
            row.classList.toggle("chosen", chosen);
            row.querySelector("button").setAttribute("aria-pressed", String(chosen));
        }
        const side = find("files_side");
        if (side && side.offsetTop > find("files_left").offsetTop + 40) {  // a narrow window: the details are below
            window.setTimeout(() => side.scrollIntoView({behavior: "smooth", block: "start"}), 250);
        }
    }

    function done(button) {
        button.classList.add("done");
        window.setTimeout(() => button.classList.remove("done"), 1200);
    }

    function copy(button, text) {
        if (navigator.clipboard && window.isSecureContext) {
            navigator.clipboard.writeText(text).then(() => done(button));
            return;
        }
        const field = document.createElement("textarea");  // pages that are not https have no clipboard object
        field.value = text;
        document.body.appendChild(field);
        field.select();
        if (document.execCommand("copy")) done(button);
        field.remove();
    }

    function addToPrompt(button, text) {
        const prompt = root().querySelector("#txt2img_prompt textarea");
        if (!prompt) return;
        prompt.value = prompt.value.trim() ? prompt.value.trimEnd().replace(/,$/, "") + ", " + text : text;
        prompt.dispatchEvent(new Event("input", {bubbles: true}));
        done(button);
    }

    const PRESSED = "[data-ti-fix], [data-ti-fix-copy], [data-ti-fix-add], [data-ti-fix-to]";

    document.addEventListener("click", (event) => {
        const from = event.composedPath()[0];
        const pressed = from instanceof Element && from.closest(PRESSED);
        if (!pressed || !pressed.closest("#ti_fix_root")) return;
        const {tiFix, tiFixCopy, tiFixAdd, tiFixTo} = pressed.dataset;
        if (tiFixTo !== undefined) goTo(...tiFixTo.split(/:(.*)/s));
        else if (tiFixCopy !== undefined) copy(pressed, tiFixCopy);
        else if (tiFixAdd !== undefined) addToPrompt(pressed, tiFixAdd);
        else {
            const page = pageOf(pressed);
            if (page === "files" && tiFix.startsWith("open:")) choose(tiFix);
            send(page, tiFix);
        }
    });

    /** Brings a panel of a row of tabs into sight; by its place, as the words on the tabs may be translated. */
    function openTab(tabs, panelId) {
        const panels = [...(tabs ? tabs.children : [])].filter((each) => each.id && !each.matches(".tab-nav"));
        const place = panels.findIndex((each) => each.id === panelId);
        tabs?.querySelectorAll(":scope > .tab-nav button")[place]?.click();
    }

    async function until(look) {
        for (let tries = 0; tries < 50; tries++) {
            const found = look();
            if (found) return found;
            await new Promise((go) => window.setTimeout(go, 100));
        }
        return null;
    }

    /** Opens one of our pages; what it draws is there when this is over. */
    async function openPage(page) {
        openTab(root().querySelector("#tabs"), "tab_ti_fix");
        openTab(find("tabs"), "ti_fix_" + page);
        await until(() => find(page + "_page")?.offsetParent);
    }

    async function goTo(page, command) {
        await openPage(page);
        send(page, command);
    }

    const KINDS = {"image/png": ".png", "image/jpeg": ".jpg", "image/webp": ".webp", "image/avif": ".avif"};

    /** Puts a picture of the WebUI, as it was saved, into an upload field of ours. */
    async function deliver(image, page, field) {
        const data = await (await fetch(image.src)).blob();
        const path = image.src.startsWith("data:") ? "" : decodeURIComponent(image.src.split("?")[0]);
        const stem = path.split(/[/\\]/).pop().replace(/\.\w+$/, "") || "picture-" + Date.now();
        await openPage(page);
        const files = new DataTransfer();
        files.items.add(new File([data], stem + (KINDS[data.type] || ".png"), {type: data.type}));
        const empty = () => find(field)?.querySelector("input[type=file]");
        for (let tries = 0; tries < 4; tries++) {  // Gradio 3 drops an upload when anything is drawn meanwhile
            const input = await until(empty);
            if (!input) return;
            input.files = files.files;
            input.dispatchEvent(new Event("change", {bubbles: true}));
            await until(() => empty() !== input);
            if (await until(empty)) return;  // what has arrived is taken out of the field again
            find(field).querySelector('button[aria-label="Clear"]')?.click();
        }
    }

    const SENDS = [
        ["Train on it", "train", "train_files"],
        ["Evaluate against it", "evaluate", "evaluate_sent_pictures"],
        ["Evaluate its embedding", "evaluate", "evaluate_sent_settings"],
    ];
    const SHOWN = '[data-testid="detailed-image"], .preview img, .selected img, img';
    const SOURCES = [  // where the buttons go, the picture that they send, which of them
        ["txt2img", "#image_buttons_txt2img", "#txt2img_gallery", SENDS],
        ["img2img", "#image_buttons_img2img", "#img2img_gallery", SENDS],
        ["pnginfo", "#tab_pnginfo #txt2img_tab", "#pnginfo_image", SENDS],
    ];

    /** "Send to" buttons of our own under the WebUI's pictures; in sight while there is a picture. */
    function addSends() {
        for (const [name, beside, source, sends] of SOURCES) {
            const place = root().querySelector(beside);
            if (!place) continue;
            const picture = () => SHOWN.split(", ").map((each) => root().querySelector(source)?.querySelector(each)).find(Boolean);
            let row = root().querySelector("#ti_fix_send_" + name);
            if (!row) {
                row = document.createElement("div");
                row.id = "ti_fix_send_" + name;
                for (const [word, page, field] of sends) {
                    const button = document.createElement("button");
                    button.type = "button";
                    button.textContent = word;
                    button.addEventListener("click", () => picture() && deliver(picture(), page, field));
                    row.append(button);
                }
                const after = place.tagName === "BUTTON" ? place.parentElement : place;
                after.insertAdjacentElement("afterend", row);
            }
            row.hidden = !picture();
        }
    }

    document.addEventListener("change", (event) => {  // a text that is edited in place
        const edited = event.target instanceof Element && event.target.closest("#ti_fix_root [data-ti-fix-edit]");
        if (edited) send(pageOf(edited), edited.dataset.tiFixEdit + ":" + edited.value);
    });

    document.addEventListener("keydown", (event) => {
        if (event.key !== "Tab") return;
        // browsers stop at lists that scroll, which Gradio takes away at that moment: the keyboard would be nowhere
        for (const list of root().querySelectorAll("#ti_fix_root ul.options")) list.tabIndex = -1;
        // and what is chosen in a list would keep the keyboard: Gradio 4 swallows every key there
        if (event.target.closest?.("#ti_fix_root .token-remove")) event.stopPropagation();
    }, true);

    const SCROLLED = [".rows", ".strip", ".noticed ul", ".album"];

    /** What was drawn anew gets its scroll position and its open folds back, and the keyboard its place on a button. */
    function keepPlace(page) {
        const places = new Map();
        const folds = new Map();
        page.addEventListener("scroll", (event) => {
            const kind = SCROLLED.find((each) => event.target.matches?.(each));
            if (kind) places.set(kind, [event.target.scrollLeft, event.target.scrollTop]);
        }, true);
        page.addEventListener("focusin", (event) => {
            lastCommand = event.target.closest?.("button[data-ti-fix]")?.dataset.tiFix || "";
        });
        page.addEventListener("click", (event) => {
            const fold = event.target.closest?.("summary")?.parentElement;
            if (fold) folds.set(fold.className, !fold.open);
        }, true);
        new MutationObserver((changes) => {
            for (const node of changes.flatMap((change) => [...change.addedNodes])) {
                if (!(node instanceof Element)) continue;
                for (const [kind, [left, top]] of places) {
                    const again = node.matches(kind) ? node : node.querySelector(kind);
                    if (again) again.scrollTo(left, top);
                }
                for (const fold of node.querySelectorAll("details")) {
                    if (folds.has(fold.className)) fold.open = folds.get(fold.className);
                }
            }
            announce(page);
            if (!lastCommand || document.activeElement !== document.body) return;
            const again = page.querySelector('button[data-ti-fix="' + CSS.escape(lastCommand) + '"]');
            if (again) again.focus({preventScroll: true});
        }).observe(page, {childList: true, subtree: true});
    }

    const told = new Map();

    /** Says a job's progress to screen readers, at each tenth; its end is a message that they read by themselves. */
    function announce(page) {
        const bar = page.querySelector('[role="progressbar"]');
        const tenth = bar ? Math.floor(bar.getAttribute("aria-valuenow") / 10) : -1;
        if (told.get(page) === tenth) return;
        told.set(page, tenth);
        let place = document.getElementById("ti_fix_announced");
        if (!place) {
            place = document.createElement("div");
            place.id = "ti_fix_announced";
            place.setAttribute("aria-live", "polite");
            document.body.append(place);
        }
        if (bar) place.textContent = bar.getAttribute("aria-label") + ": " + tenth * 10 + " %";
    }

    /** Folders are read and running jobs found when a page comes into sight, so that starting the WebUI costs nothing. */
    function watchPage(page) {
        const name = pageOf(page);
        new IntersectionObserver((changes) => {
            if (changes.some((change) => change.isIntersecting)) press(name + "_opened");
        }).observe(page);
        keepPlace(page);
    }

    const BADGE = "position:absolute;top:6px;left:6px;z-index:2;padding:1px 7px;border-radius:999px;font-size:11px;" +
        "line-height:1.5;color:#fff;background:rgba(20,20,28,.78);border:0;cursor:pointer";
    let badgesAsked = 0;

    /** What each embedding is made for, as a badge on its card, told by the API; pressed, it opens our page. */
    async function badgeCards() {
        const cards = [...root().querySelectorAll('[id*="_textual_inversion_cards"] .card:not([data-ti-fix-badge])')];
        if (!cards.length || document.hidden || Date.now() - badgesAsked < 5000) return;
        badgesAsked = Date.now();
        const answer = await fetch("ti_fix/v1/files").catch(() => null);
        if (!answer || !answer.ok) return;
        const words = new Map();
        for (const file of (await answer.json()).files) {
            const word = file.verdict === "reject" ? "✕" : {sd15: "SD1.5", sdxl: "SDXL", sd2: "SD2"}[file.made_for];
            for (const name of [file.trigger, ...file.aliases]) if (word) words.set(name, [word, file.id]);
        }
        for (const card of cards) {
            const [word, id] = words.get(card.dataset.name) || [""];
            card.dataset.tiFixBadge = word;
            if (!word) continue;
            const badge = document.createElement("button");
            badge.type = "button";
            badge.style.cssText = BADGE;
            badge.textContent = word;
            badge.title = "Open in TI Fix";
            badge.addEventListener("click", (event) => {
                event.stopPropagation();  // the card itself puts its name into the prompt
                const search = find("files_search")?.querySelector("textarea, input");
                if (search?.value) {  // an old search would hide the row
                    search.value = "";
                    search.dispatchEvent(new Event("input", {bubbles: true}));
                }
                goTo("files", "open:" + id);
            });
            card.append(badge);
        }
    }

    const watched = new Set();
    window.setInterval(() => {  // pages are drawn when their tab is first opened, and anew after a reload
        for (const page of root().querySelectorAll('#ti_fix_root [id^="ti_fix_"][id$="_page"]')) {
            if (watched.has(page)) continue;
            watched.add(page);
            watchPage(page);
        }
        badgeCards();
        addSends();
    }, 300);
})();
