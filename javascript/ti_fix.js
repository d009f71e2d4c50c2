// Loaded by the WebUI into its page. Only what Python cannot do: rows and filter buttons of the Files page are plain
// HTML, and a press on one is handed to Gradio through one hidden button. Ids of elements begin with "ti_fix_".
(function () {
    "use strict";

    let lastCommand = "";

    const root = () => (typeof gradioApp === "function" ? gradioApp() : document);
    const find = (id) => root().querySelector("#ti_fix_files_" + id);

    function press(id) {
        const found = find(id);
        const button = found && (found.tagName === "BUTTON" ? found : found.querySelector("button"));
        if (button) button.click();
    }

    function send(command) {
        lastCommand = command;
        window.tiFixCommand = command;
        if (!command.startsWith("open:")) find("table").querySelector(".rows")?.scrollTo(0, 0);
        press("send");
    }

    /** Marks the chosen row; the list itself is not drawn anew, so it keeps its scroll position. */
    function choose(command) {
        for (const row of find("table").querySelectorAll("tr[data-ti-fix]")) {
            const chosen = row.dataset.tiFix === command;
            row.classList.toggle("chosen", chosen);
            row.querySelector("button").setAttribute("aria-pressed", String(chosen));
        }
        const side = find("side");
        if (side && side.offsetTop > find("left").offsetTop + 40) {  // a narrow window: the details are below
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

    document.addEventListener("click", (event) => {
        const from = event.composedPath()[0];
        const pressed = from instanceof Element && from.closest("[data-ti-fix], [data-ti-fix-copy], [data-ti-fix-add]");
        if (!pressed || !pressed.closest("#ti_fix_root")) return;
        const {tiFix, tiFixCopy, tiFixAdd} = pressed.dataset;
        if (tiFixCopy !== undefined) copy(pressed, tiFixCopy);
        else if (tiFixAdd !== undefined) addToPrompt(pressed, tiFixAdd);
        else {
            if (tiFix.startsWith("open:")) choose(tiFix);
            send(tiFix);
        }
    });

    /** What was drawn anew gets its scroll position back, and a pressed button the keyboard's place. */
    function keepPlace(page) {
        let top = 0;
        page.addEventListener("scroll", (event) => {
            if (event.target.matches(".rows")) top = event.target.scrollTop;
        }, true);
        new MutationObserver((changes) => {
            const drawn = changes.some((change) => [...change.addedNodes].some((node) => node.matches?.(".rows")));
            if (drawn) page.querySelector(".rows").scrollTop = top;
            if (!lastCommand || document.activeElement !== document.body) return;
            const again = page.querySelector('button[data-ti-fix="' + CSS.escape(lastCommand) + '"]');
            if (again) again.focus({preventScroll: true});
        }).observe(page, {childList: true, subtree: true});
    }

    /** The folders are read when the page comes into sight, so that starting the WebUI costs nothing. */
    function watchPage(page) {
        new IntersectionObserver((changes) => {
            if (changes.some((change) => change.isIntersecting)) press("opened");
        }).observe(page);
        keepPlace(page);
    }

    /** Pages that only need to know that they came into sight. */
    for (const name of ["convert"]) {
        const looking = window.setInterval(() => {
            const page = root().querySelector(`#ti_fix_${name}_page`);
            if (!page) return;
            window.clearInterval(looking);
            new IntersectionObserver((changes) => {
                const opened = root().querySelector(`#ti_fix_${name}_opened`);
                const button = opened && (opened.tagName === "BUTTON" ? opened : opened.querySelector("button"));
                if (button && changes.some((change) => change.isIntersecting)) button.click();
            }).observe(page);
        }, 300);
    }

    const waiting = window.setInterval(() => {
        const page = find("page");
        if (!page) return;
        window.clearInterval(waiting);
        watchPage(page);
    }, 300);
})();
